"""Quality of a run over time, as its dispatcher measures it."""

from infra.web.answers import Answer


class SliceReading(Answer):
    """Quality over all samples, or over those with one value of a field."""

    field: str
    """Table of the schema; empty: all samples."""
    key: str
    """The value's key in 16 hex digits, or others; empty: all samples."""
    samples: int
    clicks: int
    logloss: float | None
    auc: float | None
    mean_prediction: float | None
    click_rate: float | None


class CurveReading(Answer):
    """Samples with about the same prediction; a calibrated model predicts their click rate."""

    samples: int
    mean_prediction: float
    click_rate: float


class WindowReading(Answer):
    """Consecutive samples of a run."""

    first_step: int
    last_step: int
    samples_before: int
    """Samples of the run before this window."""
    quality: SliceReading
    slices: list[SliceReading]
    """The most frequent values of each field of quality.slices; only in the newest window and in run."""
    curve: list[CurveReading]
    """Calibration, lowest prediction first; only in the newest window and in run."""


class QualityAnswer(Answer):
    """Test-then-train quality: every sample is predicted before it is learnt."""

    window_samples: int
    """Samples of a window, at least."""
    windows: list[WindowReading]
    """Closed windows, oldest first."""
    run: WindowReading | None
    """All samples so far; null: there are none."""
