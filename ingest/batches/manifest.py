"""Manifests, which say what events make up each batch, and the file that keeps them.

A manifest is appended, and durable, before its batch is dispatched; a replay forms its batches from manifests alone, so
a recovered run trains the same batches. Ranges cover rejected events too: every event lies in exactly one range, or in
one of those that were skipped. The file is framed (``ingest.log.frames``); one of an earlier format is refused.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from infra.files import naming
from ingest.errors import LogCorrupt, LogError
from ingest.log.frames import frame, lock, read_frames, sync_folder, truncate, write_durably
from ingest.streams.position import Range

OPENING = b"FRESHMF2"
"""how the file begins: what it is, and the version of its format"""


class Manifest(msgspec.Struct, frozen=True):
    """What one step trains on."""

    run: str
    generation: int
    step: int
    ranges: tuple[Range, ...]
    samples: int
    """good events in the ranges"""
    rejected: int
    """bad events in the ranges"""
    skipped: tuple[Range, ...] = ()
    """ranges, before those of their partitions, that were left out: by the lag policy, or removed by retention"""
    skipped_events: int = 0
    """events in them; packed records that were never read count with the mean of those read"""


_decoder = msgspec.msgpack.Decoder(Manifest)
_encoder = msgspec.msgpack.Encoder()


class ManifestLog:
    """The manifests of a run in one append-only file; one writer at a time."""

    def __init__(self, path: Path) -> None:
        """Opens or creates the file; a torn last manifest (never dispatched) is cut off, other damage is an error."""
        self.path = path
        with ExitStack() as undo, naming(path, LogError):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = lock(path)
            undo.callback(os.close, self._file)
            manifests, end = _read(path)
            truncate(self._file, end)
            self._end = end or write_durably(self._file, OPENING, 0, path)
            sync_folder(path.parent)
            undo.pop_all()
        self.last: Manifest | None = manifests[-1] if manifests else None
        """the newest manifest"""

    def append(self, manifest: Manifest) -> None:
        """Returns once the manifest is durable."""
        last = self.last
        if last is not None and last.run == manifest.run and manifest.step <= last.step:
            raise LogError(
                f"manifest of step {manifest.step} refused by {self.path}: run {manifest.run!r} has step {last.step}; "
                "expected a later step; replay the recorded manifests instead of forming them again"
            )
        self._end += write_durably(self._file, frame(_encoder.encode(manifest)), self._end, self.path)
        self.last = manifest

    def __iter__(self) -> Iterator[Manifest]:
        """Every manifest, oldest first."""
        return iter(_read(self.path)[0])

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_manifests(path: Path) -> list[Manifest]:
    """Every whole manifest of a file that another process may be writing."""
    return _read(path)[0]


def _read(path: Path) -> tuple[list[Manifest], int]:
    bodies, end = read_frames(path, OPENING)
    try:
        return [_decoder.decode(body) for body in bodies], end
    except msgspec.DecodeError as error:
        raise LogCorrupt(
            f"{path} holds a manifest that cannot be decoded: {error}; expected the manifests of one version; "
            "restore the file or start a new run"
        ) from error
