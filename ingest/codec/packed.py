"""Many samples in one record, for throughput: keys already hashed, dense floats already transformed.

A record is a header (magic, version, fingerprint of the schema, count, E, N), then ``count`` samples, each
time f8, E keys u8, N dense f4, label f4, then weight f4 if the schema has weights, a share f4 for each key of its
pooled tables, and an f4 for each label after the main one (NaN: not known), little-endian without padding.
Crosses are not in it, so a schema may get others while records are on their way. A header that cannot be used rejects
the whole record as one event at index 0; a bad sample is rejected alone, with only its bytes.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.columns import MAX_TIME, MOST_WEIGHT, Faults, time_fault, to_float32, weight_fault
from ingest.convert import Converter, Event
from ingest.errors import EncodeError
from ingest.presence import missing_faults
from ingest.samples import Samples
from ingest.schema import FLOAT32_MAX, Schema

MAGIC = b"FSHT"
VERSION = 1
HEADER = struct.Struct("<4sHHQIHH")
"""Magic, version, zero, fingerprint, count, E, N."""


def is_packed(payload: bytes) -> bool:
    """Whether it starts with the magic, which JSON never does."""
    return payload.startswith(MAGIC)


class PackedCodec:
    """Encodes and decodes packed records of one schema."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.dtype = np.dtype(
            [
                ("time", "<f8"),
                ("keys", "<u8", (schema.singles,)),
                ("dense", "<f4", (schema.dense,)),
                ("label", "<f4"),
                *([("weight", "<f4")] if schema.weight else []),
                *([("shares", "<f4", (schema.shares,))] if schema.pools else []),
                *([("more_labels", "<f4", (len(schema.more_labels),))] if schema.more_labels else []),
            ]
        )
        self._fingerprint = int(schema.record_fingerprint, 16)
        self._converter = Converter(schema)
        low = [to_float32(d, np.array([d.min]))[0] for d in schema.dense_fields]
        high = [to_float32(d, np.array([d.max]))[0] for d in schema.dense_fields]
        self._low_N = np.clip(np.array(low, np.float32), -FLOAT32_MAX, 0).astype(np.float32)
        self._high_N = np.clip(np.array(high, np.float32), 0, FLOAT32_MAX).astype(np.float32)
        self.most = (schema.limits.record_bytes - HEADER.size) // self.dtype.itemsize
        """Samples that fit into one record."""

    def encode(self, samples: Samples) -> bytes:
        """One record of 1 to ``most`` samples."""
        if not 1 <= len(samples) <= self.most:
            raise EncodeError(
                f"cannot pack {len(samples)} samples into a record of {self.schema.name!r}: expected 1 to {self.most}; "
                "use other samples per record or a larger limits.record_bytes"
            )
        rows_B = np.empty(len(samples), self.dtype)
        rows_B["time"], rows_B["keys"] = samples.times_B, samples.keys_BF[:, : self.schema.singles]
        rows_B["dense"], rows_B["label"] = samples.dense_BN, samples.labels_B
        if self.schema.weight:
            rows_B["weight"] = 1 if samples.weights_B is None else samples.weights_B
        if self.schema.pools:
            rows_B["shares"] = samples.shares_BP
        if self.schema.more_labels:
            rows_B["more_labels"] = samples.more_labels_BL
        return (
            HEADER.pack(MAGIC, VERSION, 0, self._fingerprint, len(samples), self.schema.singles, self.schema.dense)
            + rows_B.tobytes()
        )

    def encode_events(self, events: Sequence[Event]) -> bytes:
        """One record of events; an event that would be rejected later raises EncodeError here."""
        samples, faults = self._converter.convert_events(events)
        if faults:
            row, reason = min(faults.items())
            raise EncodeError(
                f"cannot pack event {row} of {len(events)}: {reason}; expected schema {self.schema.name!r}; "
                "correct the event or send it as JSON, where it becomes a dead letter"
            )
        return self.encode(samples)

    def count(self, payload: bytes) -> int | str:
        """How many samples a record holds, or why its header cannot be used."""
        if len(payload) > self.schema.limits.record_bytes:
            return f"oversized: record of {len(payload)} bytes, at most {self.schema.limits.record_bytes}"
        if len(payload) < HEADER.size:
            return f"not decodable: packed header of {len(payload)} bytes, expected {HEADER.size}"
        _, version, _, fingerprint, count, fields, dense = HEADER.unpack_from(payload)
        if version != VERSION:
            return f"not decodable: packed version {version}, expected {VERSION}"
        if (fingerprint, fields, dense) != (self._fingerprint, self.schema.singles, self.schema.dense):
            return (
                f"wrong schema: fingerprint {fingerprint:016x} with {fields} keys and {dense} dense, "
                f"expected {self.schema.record_fingerprint} with {self.schema.singles} and {self.schema.dense}"
            )
        if count == 0 or HEADER.size + count * self.dtype.itemsize != len(payload):
            return f"not decodable: {count} packed samples in {len(payload)} bytes"
        return int(count)

    def decode(self, payloads: Sequence[bytes]) -> tuple[Samples, Faults]:
        """Samples of records whose headers are good, in order (those with faults hold nonsense), and the faults."""
        from ingest.codec import unpacking  # loads numba, which encoding does not need

        parts = [np.frombuffer(payload, self.dtype, offset=HEADER.size) for payload in payloads]

        def column(name: str) -> NDArray[Any]:
            return np.concatenate([rows_B[name] for rows_B in parts])

        samples = Samples(
            column("label"),
            column("dense"),
            unpacking.add_crosses(column("keys"), self.schema),
            column("time"),
            column("weight") if self.schema.weight else None,
            column("shares") if self.schema.pools else None,
            column("more_labels") if self.schema.more_labels else None,
        )
        columns = samples.labels_B, samples.times_B, samples.dense_BN
        return samples, self._faults(samples, unpacking.are_good(*columns, self._low_N, self._high_N))

    def sample_bytes(self, payload: bytes, index: int) -> bytes:
        """The bytes of one sample of a record."""
        at = HEADER.size + index * self.dtype.itemsize
        return bytes(payload[at : at + self.dtype.itemsize])

    def _faults(self, samples: Samples, good_B: NDArray[np.bool_]) -> Faults:
        """good_B: which have a label, a time and dense floats that are allowed."""
        if samples.weights_B is not None:
            good_B &= (samples.weights_B >= 0) & (samples.weights_B <= MOST_WEIGHT)
        if samples.shares_BP is not None:
            good_B &= ((samples.shares_BP >= 0) & (samples.shares_BP <= MOST_WEIGHT)).all(axis=1)
        if (more_BL := samples.more_labels_BL) is not None:
            good_B &= ((more_BL == 0) | (more_BL == 1) | np.isnan(more_BL)).all(axis=1)
        faults = {int(row): self._fault(samples, row) for row in np.flatnonzero(~good_B)}
        missing_faults(samples, self.schema, faults)
        return faults

    def _fault(self, samples: Samples, row: Any) -> str:
        if not 0 <= samples.times_B[row] < MAX_TIME:
            return time_fault(float(samples.times_B[row]))
        if samples.labels_B[row] not in (0, 1):
            return f"label: {samples.labels_B[row]:g}, expected 0 or 1"
        if samples.weights_B is not None and not 0 <= samples.weights_B[row] <= MOST_WEIGHT:
            return weight_fault(self.schema.weight, float(samples.weights_B[row]))
        if samples.shares_BP is not None:
            for share in samples.shares_BP[row].tolist():
                if not 0 <= share <= MOST_WEIGHT:
                    return weight_fault("of a value", share)
        if samples.more_labels_BL is not None:
            for name, label in zip(self.schema.more_labels, samples.more_labels_BL[row].tolist(), strict=True):
                if label not in (0, 1) and not np.isnan(label):
                    return f"label: {name!r} is {label:g}, expected 0 or 1"
        return self._dense_fault(samples.dense_BN[row])

    def _dense_fault(self, dense_N: NDArray[np.float32]) -> str:
        place = int(np.flatnonzero(~((dense_N >= self._low_N) & (dense_N <= self._high_N)))[0])
        name = self.schema.dense_fields[place].name
        value = float(dense_N[place])
        low = self._low_N[place]
        high = self._high_N[place]
        kind = (
            "not finite"
            if not np.isfinite(value)
            else "oversized"
            if value > high
            else "negative"
            if value < 0
            else "too small"
        )
        return f"{kind}: dense {name!r} is {value:g}, expected {low:g} to {high:g}"
