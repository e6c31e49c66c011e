"""Times a reader's first hour: ``python -m tests.first_hour`` installs Freshet anew, runs the tutorial's commands, and
executes the notebooks.

The environment is a new one with the wheels of this folder and what they require, fetched from the usual registry by
uv, without its cache. Kernels are compiled anew. It prints a line for each part; it needs the network.
"""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
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


def uv(*arguments: str | Path) -> None:
    """With the uv of the machine, or the one that make setup has fetched."""
    program = shutil.which("uv") or str(ROOT / "build" / "uv" / "bin" / "uv")
    subprocess.run([program, *map(str, arguments), "--quiet"], check=True)


def install(what: Iterable[str | Path], environment: Path) -> None:
    python = environment / "bin" / "python"
    uv("pip", "install", "--compile-bytecode", "--python", python, "--constraint", ROOT / "constraints.txt", *what)


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
                uv("venv", "--python", sys.executable, folder / "environment")
                install(wheels, folder / "environment")
            with timed("commands of the tutorial"):
                read_tutorial(folder)
        with timed("Jupyter"):
            install(["nbclient", "ipykernel"], folder / "environment")
        execute_notebooks(folder)


if __name__ == "__main__":
    main()
