"""The client as it is installed where nothing else of Freshet is: its wheel and what that requires, in an own venv."""

import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.end_to_end.processes import ROOT
from tests.wheels import CLIENT, build_wheel, site_of


def needed_by(name: str, found: dict[str, metadata.Distribution]) -> dict[str, metadata.Distribution]:
    """The distributions that one requires, as they are installed here; without extras."""
    for text in metadata.requires(name) or ():
        required = Requirement(text)
        is_wanted = required.marker is None or required.marker.evaluate({"extra": ""})
        if is_wanted and required.name not in found:
            found[required.name] = metadata.distribution(required.name)
            needed_by(required.name, found)
    return found


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the client alone."""
    folder = tmp_path_factory.mktemp("wheel")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    site = site_of(python)
    zipfile.ZipFile(build_wheel(CLIENT, folder)).extractall(site)
    for distribution in needed_by("freshet-client", {}).values():
        for name in {file.parts[0] for file in distribution.files or () if ".." not in file.parts}:
            if name != "__pycache__" and not (site / name).exists():
                (site / name).symlink_to(str(distribution.locate_file(name)))
    return python


def test_the_client_needs_nothing_else_of_freshet(python: Path, tmp_path: Path) -> None:
    program = (
        "import sys, importlib.util, freshet_client\n"
        "freshet_client.Client('http://127.0.0.1:1', 'secret').close()\n"
        "print([name for name in ('torch', 'numpy', 'freshet', 'infra') if importlib.util.find_spec(name)])\n"
        "print(freshet_client.__file__)\n"
    )
    done = subprocess.run([python, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    there, file = done.stdout.split("\n", 1)
    assert there == "[]"
    assert str(python.parents[1]) in file
    assert Path(file.strip()).with_name("py.typed").exists()


def test_importing_freshet_loads_nothing_until_it_is_used() -> None:
    program = "import sys, freshet; print(sorted({'httpx2', 'torch', 'numpy'} & sys.modules.keys()), freshet.Client)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stdout == "[] <class 'freshet_client.clients.Client'>\n"
