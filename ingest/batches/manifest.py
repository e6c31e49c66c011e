"""Manifests, which say what events make up each batch.

A replay forms its batches from manifests alone, so it trains the same ones. Ranges cover rejected events too: every
event lies in exactly one range, or in one of those that were skipped. Manifests are kept in the run's journal
(``dispatch/journal``).
"""

import msgspec

from ingest.streams.position import Range


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
