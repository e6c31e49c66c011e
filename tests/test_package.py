"""An installed Freshet: a real wheel, built from this folder, in an environment whose other packages have our names."""

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from infra.deploy.wheel import PARTS, move_imports
from tests.end_to_end.processes import ROOT, WAIT_SECONDS
from tests.wheels import build_wheel, environment_with, outside_environment, site_of

HOME = "freshet/_parts"
IGNORED = ("__pycache__",)
IMPORT_ALL = f"""
import importlib, json, pkgutil
import freshet._parts
found = [each.name for each in pkgutil.walk_packages(freshet._parts.__path__, "freshet._parts.")]
for name in found:
    importlib.import_module(name)
from freshet import Learner, ModelInputs
print(json.dumps([len(found), [importlib.import_module(name).NAME for name in {PARTS}]]))
"""
POLICY = """
import api, dispatch
class Policy:
    def __init__(self, parameters, seed): print("decided by", api.NAME, flush=True)
    def assign(self, situation): ...
"""
FORK = """
from pathlib import Path
from freshet._parts.dispatch.placement.policies.registry import parse_spec
from freshet._parts.infra.base.parts import COMMAND
from freshet._parts.infra.run.supervision.nursery import nursery_in
nursery = nursery_in(Path(), {})
with open("log", "wb") as log:
    print("status", nursery.start([*COMMAND, "settings"], {"FRESHET_SEED": "77"}, log).wait(), flush=True)
nursery.close()
parse_spec("theirs:Policy")._built(0)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    """Names of the files in the wheel."""
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    """The interpreter of an environment with the wheel and, at the top, other packages with the names of our parts."""
    python = environment_with([wheel], wheel.parent / "venv")
    for name in PARTS:
        package = site_of(python) / name
        package.mkdir()
        (package / "__init__.py").write_text('NAME = "theirs"\n')
    (site_of(python) / "theirs.py").write_text(POLICY)
    return python


def installed(python: Path, folder: Path, *arguments: str) -> str:
    """What the installed Python prints; executed, because a forked process would have the modules of this folder."""
    done = subprocess.run(
        [python, *arguments],
        cwd=folder,
        env=outside_environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_wheel_has_every_file_of_every_package(names: set[str]) -> None:
    found = {path for part in PARTS for path in (ROOT / part).rglob("*") if path.is_file()}
    wanted = {f"{HOME}/{path.relative_to(ROOT)}" for path in found if not set(IGNORED) & set(path.parts)}
    known = ("infra/kafka/pom.xml", "ingest/schemas/criteo.toml", "dispatch/placement/assign/cuda/transport.cu")
    assert {f"{HOME}/{name}" for name in known} < wanted
    assert wanted | {f"freshet/{path.name}" for path in (ROOT / "freshet").glob("*.py")} <= names


def test_a_wheel_brings_the_migrations(names: set[str]) -> None:
    assert {f"{HOME}/infra/deploy/alembic.ini", f"{HOME}/infra/deploy/alembic/env.py"} < names


def test_a_wheel_takes_no_name_but_freshet(names: set[str]) -> None:
    folders = {Path(name).parts[0] for name in names}
    assert [name for name in folders if not name.endswith(".dist-info")] == ["freshet"]


def test_only_imports_of_our_parts_are_moved() -> None:
    source = 'import api2, infra.base as base\n"é"; from ps.rows import ps\nfrom . import api\nname = "infra.base"\n'
    moved = source.replace("infra.base as", "freshet._parts.infra.base as").replace("from ps", "from freshet._parts.ps")
    assert move_imports(source, Path("it.py")) == moved


@pytest.mark.parametrize("source", ["import infra.base", "from  infra.base import x", "from \\\n  ps import main"])
def test_an_import_that_cannot_be_moved_fails_the_build(source: str) -> None:
    with pytest.raises(ValueError, match=r"it\.py:1: .*cannot be moved into freshet\._parts"):
        move_imports(source, Path("it.py"))


def test_all_modules_are_loaded_beside_packages_of_the_same_names(python: Path, tmp_path: Path) -> None:
    count, theirs = json.loads(installed(python, tmp_path, "-c", IMPORT_ALL))
    assert count > 400
    assert theirs == ["theirs"] * len(PARTS)


def test_its_processes_are_ours_and_code_of_another_package_gets_theirs(python: Path, tmp_path: Path) -> None:
    own = installed(python, tmp_path, "-m", "freshet", "settings", "--set", "dispatch.policy=theirs:Policy")
    assert json.loads(own)["dispatch"]["policy"] == "theirs:Policy"
    forked, policy = installed(python, tmp_path, "-c", FORK).splitlines()
    assert forked == "status 0"
    assert policy == "decided by theirs"
    assert '"seed": 77' in (tmp_path / "log").read_text()
