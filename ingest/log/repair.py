"""What a writer does to the files of a partition before it appends: checks that all exist, and removes a torn tail.

1. Every segment from the first retained one to the newest must exist: each header names the segment before it.
2. Records after the mark are kept if they are whole; one interrupted append is truncated. A segment that a crash left
   without its header has no records and is removed.
3. If the mark itself is lost, the newest segment says from where on records are retained, and all are checked.
"""

import os
from pathlib import Path

from infra.base.files import naming
from ingest.errors import LogCorrupt, LogError
from ingest.log.frames import count_frames, is_torn, truncate
from ingest.log.segments import (
    SEGMENT,
    HighWaterMark,
    SegmentHead,
    check_head,
    create_segment,
    cut_short,
    damaged,
    is_unfinished,
    missing,
    segment_firsts,
    segment_path,
)


def repair(folder: Path, mark: HighWaterMark | None) -> HighWaterMark:
    """The mark after the last whole record of a partition; the files are in order when this returns."""
    heads = _read_heads(folder, mark)
    if mark is None:
        retained = heads[max(heads)].retained if heads else 0
        mark = HighWaterMark(retained, retained, retained, SEGMENT.size)
        if not heads:
            os.close(create_segment(folder, SegmentHead(0, 0, 0)))
            return mark
    _check_chain(folder, mark, heads)
    firsts = sorted(first for first in heads if first >= mark.segment)
    for first in firsts:
        if first > mark.segment:
            mark = _enter(folder, mark, first)
        mark = _scan(folder, mark, is_last=first == firsts[-1])
    return mark


def _read_heads(folder: Path, mark: HighWaterMark | None) -> dict[int, SegmentHead]:
    """The header of every retained segment; removes a newest one whose header was never finished."""
    heads: dict[int, SegmentHead] = {}
    firsts = [first for first in segment_firsts(folder) if mark is None or first >= mark.first]
    for first in firsts:
        path = segment_path(folder, first)
        with naming(path, LogError), path.open("rb") as file:
            content = file.read(SEGMENT.size + 1)
        may_be_new = first > mark.segment if mark is not None else first == 0 or bool(heads)
        if first == firsts[-1] and may_be_new and is_unfinished(content, path):
            path.unlink()
        else:
            heads[first] = check_head(content, path)
    return heads


def _check_chain(folder: Path, mark: HighWaterMark, heads: dict[int, SegmentHead]) -> None:
    """Raises LogCorrupt unless every segment exists, from the first retained one to that of the mark."""
    at = mark.segment
    while at in heads and at > mark.first:
        at = heads[at].previous
    if at not in heads or at != mark.first:
        raise missing(segment_path(folder, max(at, mark.first)))


def _enter(folder: Path, mark: HighWaterMark, first: int) -> HighWaterMark:
    """The mark at the start of the next segment, which must begin where the last one ends."""
    if first != mark.end:
        raise cut_short(segment_path(folder, mark.segment), mark.durable_bytes, mark.end)
    return mark._replace(segment=first, durable_bytes=SEGMENT.size)


def _scan(folder: Path, mark: HighWaterMark, is_last: bool) -> HighWaterMark:
    """The mark after the whole records of its segment; only the last segment may have a torn tail, which is removed."""
    path = segment_path(folder, mark.segment)
    with naming(path, LogError):
        content = path.read_bytes()
    if len(content) < mark.durable_bytes:
        raise LogCorrupt(
            f"{path} has {len(content)} bytes but {mark.durable_bytes} were durable: records up to {mark.end} are "
            "lost; expected an unchanged file; restore it, or remove the file 'mark' beside it to accept the loss"
        )
    frames, place = count_frames(content, mark.durable_bytes)
    if place < len(content):
        if not (is_last and is_torn(content, place)):
            raise damaged(path, place, mark.end + frames)
        with naming(path, LogError), path.open("r+b") as file:
            truncate(file.fileno(), place)
    return mark._replace(end=mark.end + frames, durable_bytes=place)
