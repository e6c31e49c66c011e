"""Checks of what a run must not leave behind: processes, temporary files, files that no cut names."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import xxhash

from infra.run.figures import count
from infra.run.settings import read_stored
from infra.verify.finding import NotChecked, Violated, check
from infra.verify.journal import read_whole
from ps.cuts.manifest import CutManifest
from ps.protocol import FilePart

COMMANDS = frozenset({"dispatcher", "worker", "ps", "api", "broker", "produce"})
FOREIGN = frozenset({"broker"})
"""folders of a run in which others write"""
MOST_NAMED = 5
CUTS = "cuts"


@check("no process left")
def check_processes(folder: Path) -> str:
    """No process of the run is there any more."""
    found = [f"{name} ({process.pid})" for name, process in processes_of(folder)]
    if found:
        raise Violated(f"processes of the run are still there: {', '.join(sorted(found))}; end them")
    return "none"


def processes_of(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Processes that were started for the run in a folder, with their names."""
    wanted = str(folder.resolve())
    for process in psutil.process_iter(["cmdline", "status", "cwd"]):
        argv, status = process.info["cmdline"] or [], process.info["status"]
        if status == psutil.STATUS_ZOMBIE or "--run-folder" not in argv[:-1] or not COMMANDS & set(argv):
            continue
        given = Path(process.info["cwd"] or "/", argv[argv.index("--run-folder") + 1])
        if str(given.resolve()) == wanted:
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
    return file.name.startswith(".")


@check("cuts whole")
def check_cuts(folder: Path) -> str:
    """Every file that a cut names is there, unchanged."""
    place, manifests = local_cuts(folder), read_manifests(local_cuts(folder))
    parts = {part.name: part for manifest in manifests for part in parts_of(manifest)}
    if wrong := sorted(name for name, part in parts.items() if not is_whole(place / name, part)):
        raise Violated(f"files of cuts are missing or have changed: {named(wrong)}")
    return f"{count(len(manifests), 'cut')} of {count(len(parts), 'file')}"


@check("no unreferenced file")
def check_unreferenced(folder: Path) -> str:
    """Every file of the cuts belongs to one."""
    place, manifests = local_cuts(folder), read_manifests(local_cuts(folder))
    if read_whole(folder).ended is None:
        raise NotChecked("the run is not over, and the next start removes what a failed cut left")
    parts = {part.name for manifest in manifests for part in parts_of(manifest)}
    there = {file.relative_to(place).as_posix() for file in place.rglob("*") if file.is_file() and file.parent != place}
    if strays := sorted(there - parts):
        raise Violated(f"files belong to no cut: {named(strays)}")
    return f"none among {count(len(there), 'file')}"


def local_cuts(folder: Path) -> Path:
    """Where the cuts of a run are; raises NotChecked if they are not on this machine, or there are none."""
    url = read_stored(folder).cuts.url
    if "://" in url:
        raise NotChecked(f"the cuts are in {url}")
    place = Path(url) if url else folder / CUTS
    if not place.is_dir():
        raise NotChecked("the run has no cuts")
    return place


def read_manifests(place: Path) -> list[CutManifest]:
    """Those of all cuts in a folder, oldest first."""
    found = []
    for file in sorted(place.glob("*.json")):
        try:
            found.append(msgspec.json.decode(file.read_bytes(), type=CutManifest))
        except msgspec.DecodeError as error:
            raise Violated(f"{file} is no manifest of a cut: {error}") from error
    return found


def parts_of(manifest: CutManifest) -> list[FilePart]:
    return [*(file for shard in manifest.shards for file in shard.files), manifest.dispatcher]


def is_whole(path: Path, part: FilePart) -> bool:
    if not path.is_file() or path.stat().st_size != part.nbytes:
        return False
    return xxhash.xxh3_128_hexdigest(path.read_bytes()) == part.checksum


def named(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(sorted(names)[:MOST_NAMED]) + more
