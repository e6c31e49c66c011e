"""What the joiner has found so far: a copy that later turns do not change."""

import msgspec

from serving.labels.state import Counts, JoinState
from serving.labels.sums import LabelSums, SnapshotWindow


class ServedQuality(msgspec.Struct, frozen=True, kw_only=True):
    """The quality of served predictions, as far as their labels have arrived."""

    total: LabelSums
    windows: tuple[SnapshotWindow, ...]
    """Windows by snapshot, ascending."""
    counts: Counts
    waiting: int
    """Predictions whose label may still arrive."""
    failure: str
    """The reason why labels are not joined now; empty: they are."""


def quality_of(state: JoinState, failure: str) -> ServedQuality:
    # A prediction leaves in one of these ways, so the waiting ones need not be counted one by one.
    gone = state.total.labels + state.total.not_finite + state.total.missing + state.counts.forgotten
    return ServedQuality(
        total=state.total,
        windows=tuple(state.windows),
        counts=msgspec.structs.replace(state.counts),
        waiting=state.counts.predictions - gone,
        failure=failure,
    )
