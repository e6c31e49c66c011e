"""Memory and descriptors of every process of a run, and its folder by part, over time: whether they level off."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean

import msgspec
import psutil

from infra.chaos.census import Usage

USAGE = "usage.jsonl"
"""Name of the file in the run's folder."""
SAMPLED_SECONDS = 10.0
QUARTER = 4
OTHER_FILES = "files"
"""The part that consists of files directly in the folder."""


class UsageSample(msgspec.Struct, frozen=True):
    """What a run uses at one time: a line of usage.jsonl."""

    at_seconds: float
    """Time, in seconds since 1970."""
    processes: dict[str, Usage]
    """Use by name of the process."""
    folder_bytes: dict[str, int]
    """Bytes by part of the run's folder."""


class Level(msgspec.Struct, frozen=True):
    """Means of a figure in the first and in the last quarter of a run."""

    name: str
    first: float
    last: float
    most: float


class Levels(msgspec.Struct, frozen=True):
    """Whether what a run uses levels off."""

    samples: int
    memory: tuple[Level, ...] = ()
    """Bytes of memory of a process, by role."""
    descriptors: tuple[Level, ...] = ()
    """Descriptors of a process, by role."""
    folder: tuple[Level, ...] = ()
    """Bytes by part of the run's folder."""


class UsageLog:
    """Records samples, every few seconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next_at = 0.0

    def sample_if_due(self, processes: Mapping[str, psutil.Process]) -> None:
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + SAMPLED_SECONDS
            sample = UsageSample(time.time(), usage_of(processes), sizes_in(self._folder))
            with (self._folder / USAGE).open("ab") as file:
                file.write(msgspec.json.encode(sample) + b"\n")

    def read(self) -> list[UsageSample]:
        path = self._folder / USAGE
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [msgspec.json.decode(line, type=UsageSample) for line in lines]


def usage_of(processes: Mapping[str, psutil.Process]) -> dict[str, Usage]:
    """The use of processes that have not just ended."""
    found = {}
    for name, process in processes.items():
        with suppress(psutil.Error):
            found[name] = Usage(process.memory_info().rss, process.num_fds())
    return found


def sizes_in(folder: Path) -> dict[str, int]:
    """Bytes of everything below each folder in it, and of its own files; files removed meanwhile may be missing."""
    found = {OTHER_FILES: 0}
    for entry in folder.iterdir():
        if entry.is_dir():
            found[entry.name] = sum(_bytes_of(Path(at, file)) for at, _, files in os.walk(entry) for file in files)
        else:
            found[OTHER_FILES] += _bytes_of(entry)
    return found


def _bytes_of(file: Path) -> int:
    try:
        return file.stat().st_size if file.is_file() else 0
    except OSError:  # it has just been removed
        return 0


def level_off(samples: Sequence[UsageSample]) -> Levels:
    """The first quarter compared with the last."""
    roles = sorted({role_of(name) for sample in samples for name in sample.processes})
    parts = sorted({part for sample in samples for part in sample.folder_bytes})
    return Levels(
        len(samples),
        tuple(level(role, [list(_of_role(s, role, "rss_bytes")) for s in samples]) for role in roles),
        tuple(level(role, [list(_of_role(s, role, "descriptors")) for s in samples]) for role in roles),
        tuple(level(part, [[s.folder_bytes.get(part, 0)] for s in samples]) for part in parts),
    )


def level(name: str, values: Sequence[Sequence[float]]) -> Level:
    """values: of each sample; those without any are ignored."""
    found = [several for several in values if several]
    quarter = max(1, len(found) // QUARTER)
    return Level(name, mean_of(found[:quarter]), mean_of(found[-quarter:]), max(map(max, found)))


def mean_of(values: Iterable[Sequence[float]]) -> float:
    return fmean(value for several in values for value in several)


def role_of(name: str) -> str:
    return name.partition("-")[0]


def _of_role(sample: UsageSample, role: str, what: str) -> Iterator[float]:
    return (getattr(usage, what) for name, usage in sample.processes.items() if role_of(name) == role)
