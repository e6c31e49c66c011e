"""The image: there is no engine here, so its instructions are held against the repository that they copy from."""

import re
import tomllib
from pathlib import Path

from packaging.specifiers import SpecifierSet

from tests.end_to_end.processes import ROOT

FILE = ROOT / "infra" / "deploy" / "Dockerfile"
LINES = [line.split(maxsplit=1) for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def all_of(instruction: str) -> list[str]:
    return [rest for name, rest in LINES if name == instruction]


def test_its_python_is_one_that_freshet_runs_on() -> None:
    versions = [re.match(r"python:([\d.]+)-slim", image) for image in all_of("FROM")]
    assert len(versions) == 2
    assert all(found and found[1] in SpecifierSet(PROJECT["requires-python"]) for found in versions)


def test_what_it_copies_is_there_and_not_ignored() -> None:
    ignored = FILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    sources = [source for rest in all_of("COPY") if not rest.startswith("--from") for source in rest.split()[:-1]]
    assert sources == [".", "constraints.txt"]
    assert all((ROOT / source).exists() for source in sources)
    needed = (*PROJECT["license-files"], PROJECT["readme"], "pyproject.toml", "client", "infra", "freshet", "alembic")
    assert not set(ignored) & {*needed, *sources}


def test_what_it_installs_is_what_its_first_stage_builds() -> None:
    build, install, *_ = all_of("RUN")
    projects = [ROOT / place for place in build.split() if place.startswith(".")]
    built = [tomllib.loads((place / "pyproject.toml").read_text())["project"]["name"] for place in projects]
    assert [re.findall(r"/wheels/([a-z_]+)-\*\.whl", install)] == [[name.replace("-", "_") for name in built]]
    assert "[$EXTRAS]" in install
    (extras,) = all_of("ARG")
    assert set(extras.removeprefix("EXTRAS=").split(",")) <= set(PROJECT["optional-dependencies"])


def test_it_runs_as_a_user_who_may_write_its_data() -> None:
    (user,) = all_of("USER")
    assert f"useradd --create-home {user}" in all_of("RUN")[-1]
    assert f"chown --recursive {user} {all_of('WORKDIR')[-1]}" in all_of("RUN")[-1]
    order = [name for name, _ in LINES]
    assert order.index("USER") > max(place for place, name in enumerate(order) if name in ("RUN", "COPY"))
    assert Path(all_of("WORKDIR")[-1]) == Path("/data")
