import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from infra.base import kernels
from infra.base.kernels import (
    KEEP_SECONDS,
    Compilation,
    KernelFiles,
    all_sources,
    compile_ahead,
    kernel,
    module_folder,
    stamp,
)
from tests.end_to_end.processes import ROOT

SOURCES = {
    "a/top.py": "from a.middle import x\nfrom b import (\n    low,\n    other,\n)\nimport numpy\n",
    "a/middle.py": "def later():\n    import b.deep\n",
    "a/__init__.py": "",
    "b/__init__.py": "",
    "b/low.py": "x = 1\n",
    "b/deep.py": "from a import top\n",
    "b/stranger.py": "",
}
IMPORTED = sorted(set(SOURCES) - {"b/stranger.py", "a/__init__.py"})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in SOURCES.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    return tmp_path / "root"


def test_sources_of_a_kernel_are_all_that_its_module_imports(root: Path) -> None:
    found = [str(path.relative_to(root)) for path in all_sources(root / "a/top.py", root)]
    assert found == sorted([*IMPORTED, "a/__init__.py"])  # the last through b/deep.py


@pytest.mark.parametrize("changed", SOURCES)
def test_stamp_changes_with_every_imported_source_and_no_other(root: Path, changed: str) -> None:
    before = stamp(root / "a/top.py", root)
    (root / changed).write_text(SOURCES[changed] + "# changed\n")
    stamp.cache_clear()
    assert (stamp(root / "a/top.py", root) != before) is (changed != "b/stranger.py")


def test_stamp_is_the_same_in_another_checkout(root: Path, tmp_path: Path) -> None:
    root.rename(tmp_path / "elsewhere")
    moved = stamp(tmp_path / "elsewhere/a/top.py", tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(root)
    assert moved == stamp(root / "a/top.py", root)


def test_kernels_with_bounds_checks_are_kept_apart(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = stamp(root / "a/top.py", root)
    monkeypatch.setattr("numba.config.BOUNDSCHECK", 1)
    stamp.cache_clear()
    assert stamp(root / "a/top.py", root) != without
    stamp.cache_clear()


def test_versions_that_nobody_has_used_for_long_are_removed_and_nothing_else(root: Path, tmp_path: Path) -> None:
    keep, long_ago = tmp_path / "keep", time.time() - KEEP_SECONDS - 60
    for name in ("a.top-old", "a.top-lately", "a.middle-old"):
        (keep / name).mkdir(parents=True)
        if name.endswith("old"):
            os.utime(keep / name, (long_ago, long_ago))
    folder = module_folder(root / "a/top.py", root, keep)
    assert {path.name for path in keep.iterdir()} == {"a.top-lately", "a.middle-old", folder.name}


def test_kernels_go_below_the_users_cache_folder_or_the_packages_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = kernels.cache_folder.__wrapped__
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find() == tmp_path / "freshet" / "kernels"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert find() == ROOT / "infra" / "__pycache__" / "kernels"


def test_kernels_are_compiled_in_every_process_where_nothing_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(kernels, "ROOT", tmp_path / "file")
    assert kernels.cache_folder.__wrapped__() is None
    monkeypatch.setattr(kernels, "cache_folder", lambda: None)
    assert kernel(lambda number: number + 1)(2) == 3


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "freshet" / "kernels"
    shared.mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shared.chmod(0o777)
    assert kernels.cache_folder.__wrapped__() != shared
    shared.chmod(0o700)
    assert kernels.cache_folder.__wrapped__() == shared


def test_two_processes_that_compile_for_different_types_at_once_do_not_mix_them_up(tmp_path: Path) -> None:
    first, second = (KernelFiles(str(tmp_path), "kernel", "stamp") for _ in range(2))
    assert first.load(("float32",)) is None
    assert second.load(("float64",)) is None
    second.save(("float64",), "for float64")
    first.save(("float32",), "for float32")
    assert (first.load(("float64",)), second.load(("float32",))) == ("for float64", "for float32")
    assert [path.suffix for path in tmp_path.iterdir()] == [".nbc", ".nbc"]


def test_whoever_wants_what_another_process_compiles_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (KernelFiles(str(tmp_path), "kernel", "stamp") for _ in range(2))
    assert first.load(("float32",)) is None
    monkeypatch.setattr("infra.base.kernels.time.sleep", lambda _: first.save(("float32",), "compiled"))
    assert second.load(("float32",)) == "compiled"


def test_nobody_waits_forever_for_a_process_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (KernelFiles(str(tmp_path), "kernel", "stamp") for _ in range(2))
    monkeypatch.setattr("infra.base.kernels.WAIT_SECONDS", 0.05)
    assert first.load(("float32",)) is None
    assert second.load(("float32",)) is None


USER = """
from ingest.codec.structure import scan, scan_structure
scan_structure([b"{}"])
print(sum(scan.stats.cache_hits.values()), sum(scan.stats.cache_misses.values()))
"""


def test_a_second_process_loads_what_the_first_has_compiled(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    told = [
        subprocess.run([sys.executable, "-c", USER], cwd=ROOT, env=environment, capture_output=True, text=True).stdout
        for _ in range(2)
    ]
    assert told == ["0 1\n", "1 0\n"]


THREADS = (
    "from infra.base.kernels import use_threads as use;"
    "print(use(0), use(3), use(99), use(0, taken_cores=4), use(0, taken_cores=8), use(3, taken_cores=8))"
)


@pytest.mark.parametrize(("layer", "told"), [("omp", "4 3 8 2 1 3"), ("workqueue", "1 3 8 1 1 3")])
def test_by_default_there_are_several_threads_only_if_they_wake_quickly(layer: str, told: str) -> None:
    environment = {**os.environ, "NUMBA_NUM_THREADS": "8", "NUMBA_THREADING_LAYER": layer}
    ended = subprocess.run([sys.executable, "-c", THREADS], cwd=ROOT, env=environment, capture_output=True, text=True)
    if layer == "omp" and "No threading layer could be loaded" in ended.stderr:
        pytest.skip("needs OpenMP (libgomp)")
    assert ended.stdout.strip() == told, ended.stderr


def test_a_kernel_outside_our_files_works_without_being_kept() -> None:
    space: dict[str, object] = {}
    exec("def double(x):\n    return 2 * x", space)
    doubled = kernel(space["double"])  # type: ignore[type-var]
    np.testing.assert_array_equal(doubled(np.arange(3)), [0, 2, 4])  # type: ignore[operator]


def test_once_the_process_is_to_stop_no_further_kernel_is_compiled_ahead_and_no_lock_is_left(tmp_path: Path) -> None:
    files, asked = KernelFiles(str(tmp_path), "kernel", "stamp"), list[str]()

    def warm_up() -> None:
        assert files.load(("float32",)) is None
        assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
        asked.append("SIGTERM")
        files.load(("float64",))
        raise AssertionError("a second kernel is compiled")

    assert not compile_ahead(warm_up, ["infra"], lambda: bool(asked))
    assert list(tmp_path.iterdir()) == []
    assert files.load(("float32",)) is None  # what is needed at once is compiled all the same


def test_a_stop_ends_the_wait_for_another_process_that_compiles_and_leaves_it_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (KernelFiles(str(tmp_path), "kernel", "stamp") for _ in range(2))
    assert first.load(("float32",)) is None
    asked: list[float] = []
    monkeypatch.setattr("infra.base.kernels.time.sleep", asked.append)
    assert not compile_ahead(lambda: second.load(("float32",)), ["infra"], lambda: bool(asked))
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    first.save(("float32",), "compiled")
    assert second.load(("float32",)) == "compiled"


def test_progress_is_told_also_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Compilation] = []
    monkeypatch.setattr(kernels, "cache_folder", lambda: None)
    monkeypatch.setattr(kernels, "LOADED", set())
    monkeypatch.setattr(kernels, "LISTENERS", [told.append])
    increase: Callable[[int], int] = kernel(lambda number: number + 1)

    def warm_up() -> None:
        increase(2)

    for _ in range(2):  # the second time there is nothing to tell
        assert compile_ahead(warm_up, ["tests"], lambda: False)
    assert told == [Compilation(0, 1, "under way"), Compilation(1, 1, "complete")]
