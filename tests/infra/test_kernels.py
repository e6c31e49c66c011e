from pathlib import Path

import numba

from infra.kernels import FOLDERS, choose_folder, fingerprint


def sources(root: Path) -> Path:
    for folder in FOLDERS:
        (root / folder / "policies").mkdir(parents=True)
        (root / folder / "a.py").write_text("one")
        (root / folder / "policies" / "b.py").write_text("two")
    return root


def test_a_change_of_any_source_changes_the_fingerprint(tmp_path: Path) -> None:
    root = sources(tmp_path)
    seen = {fingerprint(root)}
    for number, file in enumerate(sorted(root.rglob("*.py"))):
        file.write_text(f"changed {number}")
        seen.add(fingerprint(root))
    assert len(seen) == 1 + 2 * len(FOLDERS)


def test_kernels_of_other_versions_are_removed_and_nothing_else(tmp_path: Path) -> None:
    root, keep = sources(tmp_path / "root"), tmp_path / "keep"
    for name in ("kernels-old", "module.pyc"):
        (keep / name).mkdir(parents=True)
    chosen = choose_folder(root, keep)
    chosen.mkdir()
    assert choose_folder(root, keep) == chosen
    assert {path.name for path in keep.iterdir()} == {chosen.name, "module.pyc"}


def test_compiled_kernels_go_to_the_chosen_folder() -> None:
    assert Path(numba.config.CACHE_DIR).name.startswith("kernels-")  # type: ignore[attr-defined]
