"""Decodes records into samples with their positions: both codecs behind one decoder, with a reason for every reject.

Legend: B good samples. A record that starts with the packed magic is packed, any other is one JSON event.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingest.codec.json_events import JsonCodec
from ingest.codec.packed import PackedCodec, is_packed
from ingest.columns import Faults
from ingest.samples import Samples, join_samples, no_samples
from ingest.sampling import choose_samples, is_sampled, weigh_negatives
from ingest.schema import Schema
from ingest.streams.position import Position
from ingest.streams.source import Record

KEPT_BYTES = 1_000_000
"""At most this much of a rejected payload is kept, so that its letter fits into a Kafka topic with default settings."""
OFFSET = 0
"""columns of ``at_B`` and ``after_B`` of Decoded"""
INDEX = 1

NOWHERE = np.empty((0, 2), np.int64)

PlaceColumns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""The columns at_B, after_B and arrived_B of Decoded."""

KINDS = {
    "not decodable": "no JSON, no UTF-8, a name twice in an object, or a packed record that is broken",
    "lone surrogate": "an escape such as \\ud800 without its other half, which is no character",
    "too deep": "more than 64 objects and lists inside each other",
    "wrong type": "a value of another type than the schema's field",
    "wrong schema": "a packed record that was made with another schema",
    "missing": "no event_time, label or fields, or no value of a field that the schema requires",
    "label": "neither 0 nor 1",
    "not finite": "a number that no float32 can hold",
    "negative": "a time or number below 0, and below its limit",
    "too small": "a number below its limit",
    "oversized": "a record, text, time or number above its limit",
    "too many values": "a list longer than the field's",
}
"""The kinds of reasons for which an event is rejected."""


class Reject(msgspec.Struct, frozen=True):
    """One event that is rejected."""

    position: Position
    reason: str
    """``kind: detail``, where kind is one of KINDS."""
    payload: bytes
    """The record, or the bytes of one sample of a packed record; truncated to KEPT_BYTES."""
    size: int
    """Its size in bytes before it was truncated."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """Consecutive events of a partition."""

    samples: Samples
    at_B: NDArray[np.int64]
    """Offset and index of each sample (B × 2)."""
    after_B: NDArray[np.int64]
    """The position after each sample (B × 2)."""
    arrived_B: NDArray[np.int64]
    """When the record of each sample was appended, in unix milliseconds."""
    rejects: tuple[Reject, ...]
    end: Position
    """The position after all of them."""
    omitted_at: NDArray[np.int64] = field(default_factory=lambda: NOWHERE)
    """Offset and index of each negative that down-sampling has left out (× 2)."""

    def __len__(self) -> int:
        return len(self.samples)


class Decoder:
    """Decodes records of one schema, JSON and packed in any mixture."""

    def __init__(self, schema: Schema, needs_label: bool = True) -> None:
        """needs_label: whether JSON events must have a label and a time; events to be predicted need not."""
        self.schema = schema
        self._json = JsonCodec(schema, needs_label)
        self._packed = PackedCodec(schema)
        self._is_sampled = needs_label and is_sampled(schema)

    def decode(self, records: Sequence[Record], start: Position, unknown: list[bytes] | None = None) -> Decoded:
        """All events of consecutive records, from start on, which is in the first record; at least one record.

        unknown: the payloads of JSON events with fields that the schema does not know are appended to it.
        """
        parts = [
            self._decode_packed(list(group)) if packed else self._decode_json(list(group), unknown)
            for packed, group in groupby(records, lambda record: is_packed(record.payload))
        ]
        decoded = join_decoded(parts)
        if self._is_sampled and len(decoded):
            decoded = self._sample(decoded)
        return decoded if start.index == 0 else _from(decoded, start)

    def nothing(self, at: Position) -> Decoded:
        empty = np.empty((0, 2), np.int64)
        samples = no_samples(self.schema.fields, self.schema.dense)
        never = np.empty(0, np.int64)
        return Decoded(samples, empty, empty, never, (), at)

    def _sample(self, decoded: Decoded) -> Decoded:
        """The same without the negatives that are not kept; those that are weigh the more."""
        samples = replace(decoded.samples, weights_B=weigh_negatives(decoded.samples, self.schema))
        if self.schema.keep_negatives == 1:
            return replace(decoded, samples=samples)
        kept_B = choose_samples(samples, decoded.at_B, self.schema)
        return Decoded(
            samples.where(kept_B),
            decoded.at_B[kept_B],
            decoded.after_B[kept_B],
            decoded.arrived_B[kept_B],
            decoded.rejects,
            decoded.end,
            decoded.at_B[~kept_B],
        )

    def _decode_json(self, records: Sequence[Record], unknown: list[bytes] | None) -> Decoded:
        samples, faults = self._json.decode([record.payload for record in records], unknown)
        at_B = np.zeros((len(records), 2), np.int64)
        at_B[:, OFFSET] = [record.offset for record in records]
        after_B = at_B.copy()
        after_B[:, OFFSET] += 1
        payloads = {row: records[row].payload for row in faults}
        columns = at_B, after_B, np.array([record.time_ms for record in records], np.int64)
        return _sift(samples, faults, columns, payloads, Position(records[-1].offset + 1))

    def _decode_packed(self, records: Sequence[Record]) -> Decoded:
        counts = [self._packed.count(record.payload) for record in records]
        good = [(r, c) for r, c in zip(records, counts, strict=True) if isinstance(c, int)]
        bad = [
            _reject(Position(r.offset), c, r.payload)
            for r, c in zip(records, counts, strict=True)
            if isinstance(c, str)
        ]
        end = Position(records[-1].offset + 1)
        if not good:
            return Decoded(*_parts(self.nothing(end)), tuple(bad), end)
        samples, faults = self._packed.decode([record.payload for record, _ in good])
        at_B, after_B = _packed_positions([record.offset for record, _ in good], [count for _, count in good])
        which_B = np.repeat(np.arange(len(good)), [count for _, count in good])
        payloads = {
            row: self._packed.sample_bytes(good[which_B[row]][0].payload, int(at_B[row, INDEX])) for row in faults
        }
        arrived_B = np.array([record.time_ms for record, _ in good], np.int64)[which_B]
        sifted = _sift(samples, faults, (at_B, after_B, arrived_B), payloads, end)
        rejects = tuple(sorted((*sifted.rejects, *bad), key=lambda reject: reject.position)) if bad else sifted.rejects
        return Decoded(*_parts(sifted), rejects, end)


def _parts(decoded: Decoded) -> tuple[Samples, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    return decoded.samples, decoded.at_B, decoded.after_B, decoded.arrived_B


def _columns(decoded: Decoded, part: slice) -> PlaceColumns:
    return decoded.at_B[part], decoded.after_B[part], decoded.arrived_B[part]


def _packed_positions(offsets: Sequence[int], counts: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    at_B = np.empty((sum(counts), 2), np.int64)
    at_B[:, OFFSET] = np.repeat(np.array(offsets, np.int64), counts)
    starts = np.cumsum(counts) - counts
    at_B[:, INDEX] = np.arange(len(at_B)) - np.repeat(starts, counts)
    after_B = at_B.copy()
    after_B[:, INDEX] += 1
    last = np.cumsum(counts) - 1
    after_B[last, OFFSET] = np.array(offsets) + 1
    after_B[last, INDEX] = 0
    return at_B, after_B


def _sift(
    samples: Samples,
    faults: Faults,
    columns: PlaceColumns,
    payloads: dict[int, bytes],
    end: Position,
) -> Decoded:
    """Separates good samples from rejects."""
    at_B, after_B, arrived_B = columns
    if not faults:
        return Decoded(samples, *columns, (), end)
    good_B = np.ones(len(samples), np.bool_)
    good_B[list(faults)] = False
    rejects = tuple(_reject(_position(at_B[row]), faults[row], payloads[row]) for row in sorted(faults))
    return Decoded(samples.where(good_B), at_B[good_B], after_B[good_B], arrived_B[good_B], rejects, end)


def _reject(position: Position, reason: str, payload: bytes) -> Reject:
    return Reject(position, reason, bytes(payload[:KEPT_BYTES]), len(payload))


def _position(pair: NDArray[np.int64]) -> Position:
    return Position(int(pair[OFFSET]), int(pair[INDEX]))


def _from(decoded: Decoded, start: Position) -> Decoded:
    """The same without the events before start."""
    skipped = count_before(decoded, start)
    rejects = tuple(reject for reject in decoded.rejects if reject.position >= start)
    samples = decoded.samples.slice(skipped, len(decoded))
    omitted_at = decoded.omitted_at[_before(decoded.omitted_at, start) :]
    return Decoded(samples, *_columns(decoded, slice(skipped, None)), rejects, decoded.end, omitted_at)


def count_before(decoded: Decoded, position: Position) -> int:
    """Number of samples before a position."""
    return _before(decoded.at_B, position)


def _before(at_B: NDArray[np.int64], position: Position) -> int:
    low, high = np.searchsorted(at_B[:, OFFSET], [position.offset, position.offset + 1])
    return int(low + np.searchsorted(at_B[low:high, INDEX], position.index))


def split_at(decoded: Decoded, count: int, end: Position) -> tuple[Decoded, Decoded]:
    """The first count samples with the rejects before end, and the rest."""
    before = tuple(reject for reject in decoded.rejects if reject.position < end)
    after = decoded.rejects[len(before) :]
    first = decoded.samples.slice(0, count)
    rest = decoded.samples.slice(count, len(decoded))
    omitted = _before(decoded.omitted_at, end)
    head = Decoded(first, *_columns(decoded, slice(0, count)), before, end, decoded.omitted_at[:omitted])
    columns = _columns(decoded, slice(count, None))
    return head, Decoded(rest, *columns, after, decoded.end, decoded.omitted_at[omitted:])


def end_of(decoded: Decoded, count: int) -> Position:
    """The position after sample number count (from 1)."""
    return _position(decoded.after_B[count - 1])


def join_decoded(parts: Sequence[Decoded]) -> Decoded:
    """Joins consecutive parts."""
    if len(parts) == 1:
        return parts[0]
    return Decoded(
        join_samples([part.samples for part in parts]),
        np.concatenate([part.at_B for part in parts]),
        np.concatenate([part.after_B for part in parts]),
        np.concatenate([part.arrived_B for part in parts]),
        tuple(reject for part in parts for reject in part.rejects),
        parts[-1].end,
        np.concatenate([part.omitted_at for part in parts]),
    )
