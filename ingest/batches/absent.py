"""Watches which fields the samples of a run have: if none of many samples has a field, its name or the schema is wrong.

Samples are examined in windows. A field is reported if the first window lacks it, or if a later window lacks it
although it was common before. It counts as absent until a window has it again. Legend: S fields of events that the
schema uses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from ingest.codec.unknown import nearest_field, unknown_fields
from ingest.errors import AbsentField
from ingest.schema import Schema

OnAbsent = Literal["warn", "stop"]
EXPECTED = 20.0
"""A field counts as vanished if a window lacks it in which this many values were expected from its earlier share."""
SHOWN = 8
"""Most names in a message."""


@dataclass(frozen=True)
class Absence:
    """Fields that are absent now, and the unknown fields that the events have."""

    fields: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """``name (example)`` of each; for a likely misspelling also the field that may be meant."""


class FieldCounts(msgspec.Struct, frozen=True):
    """How often the fields occurred in a run's samples so far."""

    total: int
    """Samples of complete windows."""
    total_S: NDArray[np.int64]
    """Values in them, by field."""
    recent: int
    """Samples of the current window."""
    recent_S: NDArray[np.int64]
    absence: Absence


class FieldWatch:
    """Counts the fields of one run."""

    def __init__(self, schema: Schema, window: int, on_absent: OnAbsent = "warn") -> None:
        """window: number of samples that are judged together."""
        self.absence = Absence()
        self._schema = schema
        self._window = window
        self._on_absent = on_absent
        self._total_S = np.zeros(len(schema.sources), np.int64)
        self._recent_S = np.zeros(len(schema.sources), np.int64)
        self._total = self._recent = 0
        self._log = structlog.get_logger()

    def shares(self) -> dict[str, float]:
        """The share of samples with a value, by field; empty before the first sample."""
        samples = self._total + self._recent
        present_S = self._total_S + self._recent_S
        return dict(zip(self._schema.sources, (present_S / samples).tolist(), strict=True)) if samples else {}

    def add(self, samples: int, present_S: NDArray[np.int64], payloads: Sequence[bytes] = ()) -> None:
        """Adds samples; at the end of a window warns of absent fields, or raises AbsentField.

        payloads: some of their records, in which unknown fields are looked for.
        """
        self._recent_S += present_S
        self._recent += samples
        if self._recent >= self._window:
            self._judge(payloads)
            self._total_S += self._recent_S
            self._total += self._recent
            self._recent_S[:], self._recent = 0, 0

    def save(self) -> FieldCounts:
        """The counterpart of ``load``."""
        return FieldCounts(self._total, self._total_S.copy(), self._recent, self._recent_S.copy(), self.absence)

    def load(self, counts: FieldCounts) -> None:
        self._total = counts.total
        self._recent = counts.recent
        self.absence = counts.absence
        self._total_S = counts.total_S.copy()
        self._recent_S = counts.recent_S.copy()

    def _judge(self, payloads: Sequence[bytes]) -> None:
        expected_S = self._total_S * (self._recent / max(1, self._total))
        lacking_S = (self._recent_S == 0) & ((self._total == 0) | (expected_S >= EXPECTED))
        known = self.absence.fields
        if not known and not lacking_S.any():  # as nearly always
            return
        still = tuple(
            name
            for name, lacks, count in zip(self._schema.sources, lacking_S, self._recent_S, strict=True)
            if lacks or (name in known and count == 0)
        )
        new = [name for name in still if name not in known]
        unknown = tuple(describe_unknown(payloads, self._schema, still)) if new else self.absence.unknown
        self.absence = Absence(still, unknown if still else ())
        if new:
            self._report(new, unknown)

    def _report(self, new: Sequence[str], unknown: Sequence[str]) -> None:
        where = f"all of the first {self._recent:,} events"
        if self._total:
            where = f"the latest {self._recent:,} events, and were in those before"
        found = f"; they hold {listed(unknown)}, which it does not know" if unknown else ""
        message = (
            f"fields {listed(new)} of schema {self._schema.name!r} are absent from {where}{found}; expected values; "
            "correct stream.schema_name or the schema ('freshet check' says what events hold)"
        )
        if self._on_absent == "stop":
            raise AbsentField(f"{message}, or set stream.on_absent_field=warn")
        self._log.warning(message)


def describe_unknown(payloads: Sequence[bytes], schema: Schema, absent: Sequence[str]) -> list[str]:
    """``name (example)`` of each field that the schema does not know."""
    described = []
    for name, example in unknown_fields(payloads, schema).items():
        meant = nearest_field(name, absent)
        described.append(f"{name} ({example}{f'; meant for {meant}?' if meant else ''})")
    return described


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
