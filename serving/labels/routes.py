"""``/v1/quality``: how good served predictions were, beside what training measured of the same model."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from pydantic import Field

from infra.web.answers import Answer
from infra.web.rules import needs
from ps.checkpoints.manifest import CheckpointManifest
from serving.labels.quality import ServedQuality
from serving.labels.sums import LabelSums, SnapshotWindow

EARLIER_NAME: Any = Field(
    description="Deprecated: the same as the timeline, for one more release.", json_schema_extra={"deprecated": True}
)


class ServedFigures(Answer):
    """Over served predictions whose label has come, or has not come in time."""

    labels: int
    """that came, and were joined"""
    clicks: int
    logloss: float | None
    calibration: float | None
    """predicted clicks over clicks: 1 is right"""
    missing: int
    """predictions whose label has not come in time"""
    not_finite: int
    """predictions that were no numbers"""


class WindowFigures(ServedFigures):
    """The same, of some consecutive snapshots."""

    first_timeline: int
    first_step: int
    """the first of these snapshots"""
    last_timeline: int
    last_step: int
    first_line: int = EARLIER_NAME
    last_line: int = EARLIER_NAME


class LabelCounts(Answer):
    """What else became of predictions and labels."""

    predictions: int
    """that were logged"""
    waiting: int
    """whose label may still come"""
    repeated: int
    """under an id that was taken"""
    unknown: int
    """labels of no prediction, or of one that was made too long ago"""
    duplicates: int
    """labels of a prediction that has one"""
    forgotten: int
    """predictions that were let go for want of memory"""
    skipped: int
    """records that retention removed before they were read"""


class TrainedFigures(Answer):
    """Test-then-train, of the samples before the newest checkpoint."""

    checkpoint: int
    timeline: int
    step: int
    samples: int
    logloss: float
    calibration: float


class QualityReading(Answer):
    """Served and trained, side by side."""

    is_logged: bool
    """whether predictions are logged at all (serving.log_predictions)"""
    served: ServedFigures
    counts: LabelCounts
    windows: list[WindowFigures]
    """by snapshot, ascending"""
    trained: TrainedFigures | None
    """null before the first checkpoint with figures"""
    failure: str
    """why labels are not joined now; empty: they are"""


def quality_router(
    served: Callable[[], ServedQuality | None], newest: Callable[[], CheckpointManifest | None]
) -> APIRouter:
    """served: what the joiner found, None if predictions are not logged; newest: the newest checkpoint, if any."""
    router = APIRouter(tags=["quality"])

    @router.get("/v1/quality", summary="How good served predictions were", **needs("read"))
    def quality() -> QualityReading:
        """Of predictions whose label came later, in an event that carries the id of the prediction."""
        return read_quality(served(), newest())

    return router


def read_quality(served: ServedQuality | None, newest: CheckpointManifest | None) -> QualityReading:
    counts = dict.fromkeys(LabelCounts.model_fields, 0)
    if served is not None:
        counts = {"waiting": served.waiting} | {
            name: getattr(served.counts, name) for name in LabelCounts.model_fields if name != "waiting"
        }
    return QualityReading(
        is_logged=served is not None,
        served=_figures(LabelSums() if served is None else served.total),
        counts=LabelCounts(**counts),
        windows=[] if served is None else [_window(window) for window in served.windows],
        trained=_trained(newest),
        failure="" if served is None else served.failure,
    )


def _figures(sums: LabelSums) -> ServedFigures:
    return ServedFigures.model_validate(sums)


def _window(window: SnapshotWindow) -> WindowFigures:
    (first_timeline, first_step), (last_timeline, last_step) = window.first, window.last
    return WindowFigures(
        **_figures(window.sums).model_dump(),
        first_timeline=first_timeline,
        first_step=first_step,
        last_timeline=last_timeline,
        last_step=last_step,
        first_line=first_timeline,
        last_line=last_timeline,
    )


def _trained(newest: CheckpointManifest | None) -> TrainedFigures | None:
    if newest is None or not newest.figures.samples:
        return None
    figures = newest.figures
    measured = {"samples": figures.samples, "logloss": figures.logloss, "calibration": figures.calibration}
    return TrainedFigures(checkpoint=newest.number, timeline=newest.timeline, step=newest.step, **measured)
