"""Manifests, which say which events make up each batch.

A replay forms its batches from manifests alone, so it trains on the same ones. Ranges cover rejected events, too, and
negatives that down-sampling leaves out: every event is in exactly one range, or in a skipped one. Manifests
are stored in the run's journal (``dispatch/journal``).
"""

import msgspec

from ingest.streams.position import Range


class Manifest(msgspec.Struct, frozen=True):
    """The events that one step trains on."""

    run: str
    generation: int
    step: int
    ranges: tuple[Range, ...]
    samples: int
    """Good events in the ranges."""
    rejected: int
    """Bad events in the ranges."""
    skipped: tuple[Range, ...] = ()
    """Skipped ranges, each before the range of its partition: skipped by the lag policy, or removed by retention."""
    skipped_events: int = 0
    """Events in them; packed records that were never read count with the mean of those read."""
    omitted_negatives: int | msgspec.UnsetType = msgspec.UNSET
    """Events in the ranges that down-sampling has left out; not recorded if there are none."""

    @property
    def omitted(self) -> int:
        """The same as a number."""
        return 0 if isinstance(self.omitted_negatives, msgspec.UnsetType) else self.omitted_negatives
