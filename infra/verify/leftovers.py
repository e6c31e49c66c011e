"""Checks of what a run must not leave behind: processes and temporary files."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psutil

from infra.base.storage import PART
from infra.run.figures import count
from infra.run.folder import named_folder
from infra.run.supervision.nursery import as_started
from infra.verify.finding import Violated, check

COMMANDS = frozenset({"agent", "dispatcher", "loader", "worker", "ps", "api", "serve", "broker", "produce", "nursery"})
NAMING = ("--run", "--run-folder")
"""Options that name the run of a process; the second is that of older versions."""
FOREIGN = frozenset({"broker"})
"""Folders of a run in which others write."""
MOST_NAMED = 5


@check("no process left")
def check_processes(folder: Path) -> str:
    """No process of the run exists any more."""
    found = [f"{name} ({process.pid})" for name, process in processes_of(folder)]
    if found:
        raise Violated(f"processes of the run are still there: {', '.join(sorted(found))}; end them")
    return "none"


def processes_of(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Processes that were started for the run in a folder, with their names."""
    wanted = str(folder.resolve())
    for process in psutil.process_iter(["cmdline", "status", "cwd"]):
        argv = as_started(process.info["cmdline"] or [])
        status = process.info["status"]
        if status == psutil.STATUS_ZOMBIE or not COMMANDS & set(argv):
            continue
        given = [value for option, value in pairwise(argv) if option in NAMING]
        place = named_folder(given[-1], Path(process.info["cwd"] or "/")) if given else None
        if place is not None and str(place.resolve()) == wanted:
            command = next(word for word in argv if word in COMMANDS)
            yield argv[argv.index("--name") + 1] if "--name" in argv[:-1] else command, process


@check("no temporary file")
def check_temporary(folder: Path) -> str:
    """Every file that was being written has its name, or is gone."""
    files = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
    found = [str(file) for file in files if is_temporary(file) and file.parts[0] not in FOREIGN]
    if found:
        raise Violated(f"temporary files are left: {named(found)}")
    return f"none among {count(len(files), 'file')}"


def is_temporary(file: Path) -> bool:
    return file.name.startswith(".") or file.name.endswith(PART)


def named(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(sorted(names)[:MOST_NAMED]) + more
