"""Events as JSON, for people and small devices.

    {"event_time": 1731600000.25, "label": 1, "fields": {"user": "u17", "item": 42, "tags": ["new", "red"]}}

Fields that the schema does not know are ignored, so a device may be newer than its schema; a field that is missing or
null is absent. An event is rejected if a name occurs twice in one object, at any depth, because one reader might use
the first value and another the last. It is also rejected if more than 64 objects and lists are nested anywhere. An
integer may have any size (an id of 2**63 or more is a raw value like any other, by its digits), as long as its digits
fit into the schema's ``string_bytes``; numbers of dense fields and buckets have the limits of their field.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingest.codec.nesting import MOST_DEPTH
from ingest.columns import Faults
from ingest.convert import Converter, Event
from ingest.keys import Raw
from ingest.samples import Samples, no_samples
from ingest.schema import Schema

_encoder = msgspec.json.Encoder()
_HEX = rb"[0-9a-fA-F]"
_ESCAPES = re.compile(
    rb"\\u[dD][89abAB]%b{2}\\u[dD][c-fC-F]%b{2}|(\\u[dD][89a-fA-F]%b{2})|\\." % (_HEX, _HEX, _HEX), re.DOTALL
)
"""Matches a whole surrogate pair, half of one (as a group), or any other escape."""


def encode_json(event: Event) -> bytes:
    """One JSON record; its contents are not checked."""
    return _encoder.encode(event)


class JsonCodec:
    """Decodes JSON records of one schema."""

    def __init__(self, schema: Schema, needs_label: bool = True) -> None:
        """needs_label: whether events must have a label and a time; if not, missing ones are 0."""
        self.schema = schema
        self._needs_label = needs_label
        self._converter = Converter(schema)
        self._decoder = msgspec.json.Decoder(self._event_type(is_exact=False))
        self._exact = msgspec.json.Decoder(self._event_type(is_exact=True))
        from ingest.codec import structure  # loads numba, which encoding does not need

        self._structure = structure

    def decode(self, payloads: Sequence[bytes], unknown: list[bytes] | None = None) -> tuple[Samples, Faults]:
        """Samples of all payloads (those with faults hold nonsense), and the faults by index in the list.

        unknown: payloads with fields that the schema does not know are appended to it.
        """
        faults: Faults = {}
        found_B = self._scan(payloads, faults)
        events = [
            None if row in faults else self._decode_one(row, payload, faults, unknown)
            for row, payload in enumerate(payloads)
        ]
        for row in np.flatnonzero(found_B == self._structure.UNSURE).tolist():
            if events[row] is not None and self._structure.has_duplicates(payloads[row]):
                events[row], faults[row] = None, "not decodable: a name is given twice in one object"
        good = [row for row, event in enumerate(events) if event is not None]
        if len(good) == len(events):
            return self._convert(events)
        samples, more = self._convert([events[row] for row in good])
        faults.update({good[row]: reason for row, reason in more.items()})
        return _spread(samples, good, len(events)), faults

    def _scan(self, payloads: Sequence[bytes], faults: Faults) -> NDArray[np.uint8]:
        """Scans the structure of each payload; adds faults for those that must not be parsed."""
        limit = self.schema.limits.record_bytes
        if not all(payloads) or max(map(len, payloads), default=0) > limit:
            faults.update({row: fault for row, p in enumerate(payloads) if (fault := _size_fault(p, limit))})
            payloads = [b"" if row in faults else payload for row, payload in enumerate(payloads)]
        found_B: NDArray[np.uint8] = self._structure.scan_structure(payloads)
        for row in np.flatnonzero(found_B == self._structure.DEEP).tolist():
            faults[row] = f"too deep: more than {MOST_DEPTH} objects and lists inside each other"
        return found_B

    def _convert(self, events: Sequence[Any]) -> tuple[Samples, Faults]:
        if not events:
            return no_samples(self.schema.fields, self.schema.dense), {}
        columns = list(zip(*[msgspec.structs.astuple(event.fields) for event in events], strict=True))
        times = [e.event_time for e in events]
        if not self.schema.labels:
            return self._converter.convert(times, [e.label for e in events], columns)
        by_label = list(zip(*[msgspec.structs.astuple(event.labels) for event in events], strict=True))
        main = [e.label if e.label is not None else named for e, named in zip(events, by_label[0], strict=True)]
        missing = {row: f"missing: label {self.schema.labels[0]!r}" for row, label in enumerate(main) if label is None}
        samples, faults = self._converter.convert(times, [label or 0 for label in main], columns, by_label[1:])
        return samples, faults | missing if self._needs_label else faults

    def _decode_one(self, row: int, payload: bytes, faults: Faults, unknown: list[bytes] | None) -> Any:
        try:
            if not payload.isascii():
                payload.decode()  # msgspec does not check the text of fields that it skips
            return self._decoder.decode(payload) if unknown is None else self._decode_exactly(payload, unknown)
        except msgspec.ValidationError as error:
            faults[row] = _kind(str(error))
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            faults[row] = surrogate_fault(payload) or f"not decodable: {error}"
        return None

    def _decode_exactly(self, payload: bytes, unknown: list[bytes]) -> Any:
        """Decodes one event and notes unknown fields; costs nothing extra for an event without any."""
        try:
            return self._exact.decode(payload)
        except msgspec.ValidationError:
            event = self._decoder.decode(payload)
        unknown.append(payload)
        return event

    def _event_type(self, is_exact: bool) -> Any:
        """A struct with one attribute per used field, so that decoding builds no dict; is_exact:
        refuses other fields.
        """
        names = {f"field_{i}": source for i, source in enumerate(self.schema.inputs)}
        fields = msgspec.defstruct(
            "Fields",
            [(name, self._value_type(source), None) for name, source in names.items()],
            rename=names,
            gc=False,
            forbid_unknown_fields=is_exact,
        )
        if self.schema.labels:
            time: tuple[Any, ...] = ("event_time", float) if self._needs_label else ("event_time", float, 0.0)
            named = self._labels_type()
            parts: list[Any] = [("fields", fields), time, ("label", int | None, None), ("labels", named, named())]
            return msgspec.defstruct("LabelledEvent", parts, gc=False, kw_only=True)
        if self._needs_label:
            return msgspec.defstruct("Event", [("event_time", float), ("label", int), ("fields", fields)], gc=False)
        optional: list[Any] = [("fields", fields), ("event_time", float, 0.0), ("label", int, 0)]
        return msgspec.defstruct("UnlabelledEvent", optional, gc=False)

    def _labels_type(self) -> Any:
        names = {f"label_{i}": name for i, name in enumerate(self.schema.labels)}
        kinds: list[Any] = [(name, int | None, None) for name in names]
        return msgspec.defstruct("Labels", kinds, rename=names, gc=False, frozen=True)

    def _value_type(self, source: str) -> Any:
        if source in self._converter.numeric:
            return int | float | str | None if source in self.schema.coerced else int | float | None
        if source in self._converter.pooled:
            return Raw | list[Raw] | dict[str, int | float] | None
        return Raw | list[Raw] | None if source in self._converter.lists else Raw | None


def _size_fault(payload: bytes, limit: int) -> str | None:
    if not payload:
        return "not decodable: the record is empty"
    return f"oversized: record of {len(payload)} bytes, at most {limit}" if len(payload) > limit else None


def surrogate_fault(payload: bytes) -> str | None:
    """Names the first half of an escaped surrogate pair that lacks its other half, if there is one."""
    lone = next((escape for escape in _ESCAPES.finditer(payload) if escape[1]), None)
    return lone and f"lone surrogate: {lone[0].decode()} at byte {lone.start()} is half a character"


def _kind(message: str) -> str:
    if "missing required field" in message:
        return f"missing: {message}"
    return f"oversized: {message}" if "out of range" in message else f"wrong type: {message}"


def _spread(samples: Samples, good: Sequence[int], total: int) -> Samples:
    """The samples at their places among all rows."""

    def put(column: NDArray[Any]) -> NDArray[Any]:
        spread = np.zeros((total, *column.shape[1:]), column.dtype)
        spread[good] = column
        return spread

    return samples.each(put)
