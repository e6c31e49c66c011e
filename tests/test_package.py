"""The content of an installed Freshet: a real wheel, built from this folder."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.end_to_end.processes import ROOT

PACKAGES = ("ingest", "dispatch", "trainer", "ps", "api", "serving", "infra", "benchmarks", "freshet")
IGNORED = ("__pycache__",)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the files in the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_a_wheel_has_every_file_of_every_package(installed: set[str]) -> None:
    found = {path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()}
    wanted = {str(path.relative_to(ROOT)) for path in found if not set(IGNORED) & set(path.parts)}
    assert {"infra/kafka/pom.xml", "ingest/schemas/criteo.toml", "dispatch/placement/assign/cuda/transport.cu"} < wanted
    assert wanted <= installed


def test_a_wheel_brings_the_migrations_without_shadowing_their_library(installed: set[str]) -> None:
    assert {"infra/deploy/alembic.ini", "infra/deploy/alembic/env.py"} < installed
    assert not any(name.startswith("alembic") for name in installed)
    assert not any(name.startswith(("tests/", "docs/", "build/")) for name in installed)


def test_every_folder_of_a_wheel_is_a_package_of_ours_or_its_metadata(installed: set[str]) -> None:
    folders = {Path(name).parts[0] for name in installed}
    assert {name for name in folders if not name.endswith(".dist-info")} == set(PACKAGES)
