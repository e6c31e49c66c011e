"""Times a reader's first hour: ``python -m tests.first_hour`` installs Freshet anew, runs the tutorial's commands, and
executes the notebooks.

The environment is a new one with the wheels of this folder and what they require, from the usual registry; nothing of
it is cached but what pip keeps. Kernels are compiled anew. It prints a line for each part; it needs the network.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.end_to_end.processes import ROOT
from tests.notebooks import NOTEBOOKS, execute
from tests.pasting import DocumentReader
from tests.test_commands_in_documents import own_files, wait_for_samples
from tests.wheels import CLIENT, build_wheel

TUTORIAL = "docs/tutorial.md"


@contextmanager
def timed(part: str) -> Iterator[None]:
    """Prints how long a part took, and the processor time of its processes that have ended."""
    began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    yield
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    sys.stdout.write(f"{part:<28} {time.monotonic() - began:7.1f} s  {busy:7.1f} processor seconds\n")


def install(what: Iterable[str | Path], environment: Path) -> None:
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", str(ROOT / "constraints.txt"), *map(str, what)], check=True)


def read_tutorial(folder: Path) -> None:
    reader = DocumentReader(folder, folder / "environment" / "bin")
    (reader.here / ".venv").symlink_to(folder / "environment")
    own_files(reader.here)
    try:
        reader.read(TUTORIAL, lambda command: wait_for_samples(reader.here) if "produce" in command else None)
    finally:
        reader.close()


def execute_notebooks(folder: Path) -> None:
    for notebook in NOTEBOOKS:
        here = folder / notebook.stem
        here.mkdir()
        with timed(f"notebook {notebook.stem}"):
            execute(notebook, folder / "environment" / "bin" / "python", here)


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        with timed("wheels"):
            wheels = [build_wheel(project, folder) for project in (ROOT, CLIENT)]
        with timed("set-up and tutorial"):
            with timed("new environment"):
                venv.create(folder / "environment", with_pip=True)
                install(wheels, folder / "environment")
            with timed("commands of the tutorial"):
                read_tutorial(folder)
        with timed("Jupyter"):
            install(["nbclient", "ipykernel"], folder / "environment")
        execute_notebooks(folder)


if __name__ == "__main__":
    main()
