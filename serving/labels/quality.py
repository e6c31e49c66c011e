"""What the joiner has found so far, for those who ask: a copy that no later turn changes."""

import msgspec

from serving.labels.state import Counts, JoinState
from serving.labels.sums import LabelSums, SnapshotWindow


class ServedQuality(msgspec.Struct, frozen=True, kw_only=True):
    """How good served predictions were, as far as their labels have come."""

    total: LabelSums
    windows: tuple[SnapshotWindow, ...]
    """by snapshot, ascending"""
    counts: Counts
    waiting: int
    """predictions whose label may still come"""
    failure: str
    """why labels are not joined now; empty: they are"""


def quality_of(state: JoinState, failure: str) -> ServedQuality:
    # A prediction leaves in one of these ways, so those that wait need not be counted one by one.
    gone = state.total.labels + state.total.not_finite + state.total.missing + state.counts.forgotten
    return ServedQuality(
        total=state.total,
        windows=tuple(state.windows),
        counts=msgspec.structs.replace(state.counts),
        waiting=state.counts.predictions - gone,
        failure=failure,
    )
