"""Times a reader's first hour: ``python -m tests.first_hour`` installs Freshet anew and runs the tutorial's commands.

The environment is a new one with the wheels of this folder and what they require, from the usual registry; nothing of
it is cached but what pip keeps. Kernels are compiled anew. It prints a line for each part; it needs the network.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.end_to_end.processes import ROOT
from tests.pasting import DocumentReader
from tests.test_commands_in_documents import own_files, wait_for_samples

TUTORIAL = "docs/tutorial.md"


@contextmanager
def timed(part: str) -> Iterator[None]:
    """Prints how long a part took, and the processor time of its processes that have ended."""
    began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    yield
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    sys.stdout.write(f"{part:<28} {time.monotonic() - began:7.1f} s  {busy:7.1f} processor seconds\n")


def build(folder: Path) -> list[str]:
    """The wheels of Freshet and of its client."""
    for project in (ROOT, ROOT / "client"):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(command, cwd=project, check=True, capture_output=True)
    return [str(wheel) for wheel in folder.glob("*.whl")]


def install(wheels: list[str], environment: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", str(ROOT / "constraints.txt"), *wheels], check=True)


def read_tutorial(folder: Path) -> None:
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    reader = DocumentReader(folder, folder / "environment" / "bin")
    (reader.here / ".venv").symlink_to(folder / "environment")
    own_files(reader.here)
    try:
        reader.read(TUTORIAL, lambda command: wait_for_samples(reader.here) if "produce" in command else None)
    finally:
        reader.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as place, timed("all"):
        folder = Path(place)
        with timed("wheels"):
            wheels = build(folder)
        with timed("new environment"):
            install(wheels, folder / "environment")
        with timed("commands of the tutorial"):
            read_tutorial(folder)


if __name__ == "__main__":
    main()
