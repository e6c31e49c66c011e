"""``/v1/quality``: the quality of served predictions, beside what training measured of the same model."""

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
    """Figures of served predictions whose label has arrived, or has not arrived in time."""

    labels: int
    """Labels that arrived and were joined."""
    clicks: int
    logloss: float | None
    calibration: float | None
    """Predicted clicks divided by clicks; 1 is ideal."""
    missing: int
    """Predictions whose label has not arrived in time."""
    not_finite: int
    """Predictions that were not finite."""


class WindowFigures(ServedFigures):
    """The same figures, for some consecutive snapshots."""

    first_timeline: int
    first_step: int
    """Step of the first of these snapshots."""
    last_timeline: int
    last_step: int
    first_line: int = EARLIER_NAME
    last_line: int = EARLIER_NAME


class LabelCounts(Answer):
    """Counts of predictions and labels, joined or not."""

    predictions: int
    """Predictions that were logged."""
    waiting: int
    """Predictions whose label may still arrive."""
    repeated: int
    """Predictions under an id that was already used."""
    unknown: int
    """Labels of no known prediction, or of one that was made too long ago."""
    duplicates: int
    """Labels of a prediction that already has one."""
    forgotten: int
    """Predictions that were dropped to limit memory."""
    skipped: int
    """Records that retention removed before they were read."""


class TrainedFigures(Answer):
    """Test-then-train figures of the samples before the newest checkpoint."""

    checkpoint: int
    timeline: int
    step: int
    samples: int
    logloss: float
    calibration: float


class QualityReading(Answer):
    """Figures of serving and of training, side by side."""

    is_logged: bool
    """Whether predictions are logged at all (serving.log_predictions)."""
    served: ServedFigures
    counts: LabelCounts
    windows: list[WindowFigures]
    """Windows by snapshot, ascending."""
    trained: TrainedFigures | None
    """Figures of training; null before the first checkpoint with figures."""
    failure: str
    """The reason why labels are not joined now; empty: they are."""


def quality_router(
    served: Callable[[], ServedQuality | None], newest: Callable[[], CheckpointManifest | None]
) -> APIRouter:
    """``served`` returns what the joiner found, or None if predictions are not logged; ``newest`` the newest
    checkpoint.
    """
    router = APIRouter(tags=["quality"])

    @router.get("/v1/quality", summary="How good served predictions were", **needs("read"))
    def quality() -> QualityReading:
        """Covers predictions whose label arrived later, in an event that carries the id of the prediction."""
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
