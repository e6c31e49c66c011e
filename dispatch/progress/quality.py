"""What is told about a run's quality: overall, in windows and slices, and how its stream has changed."""

import msgspec

OTHERS = "others"
"""All values of a field that are not followed."""


class WeightFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What samples with weights weigh."""

    total: float
    clicks: float
    """Weight of the samples with a click."""
    effective_samples: float
    """Samples of equal weight that would tell as much: the squared sum of weights divided by the sum of squares."""


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Test-then-train quality over some samples."""

    samples: int = 0
    clicks: int = 0
    logloss: float | None = None
    auc: float | None = None
    accuracy: float | None = None
    """Share of samples whose prediction is on the right side of a half."""
    normalized_entropy: float | None = None
    """Logloss divided by the entropy of the click rate: below 1 is better than always predicting the rate."""
    calibration: float | None = None
    """Mean prediction divided by the click rate: 1 is right; above 1, too many clicks are predicted."""
    predicted_clicks: float = 0.0
    """Sum of predictions, by weight."""
    not_finite: int = 0
    """Samples excluded because their logit was NaN or infinite; above 0 the model has diverged."""
    weights: WeightFigures | None = None
    """None: every sample weighs 1."""


class SliceQuality(msgspec.Struct, frozen=True, kw_only=True):
    """Quality over the samples of a window or of the run, or over those of them with one value of a field."""

    field: str = ""
    """Table of the schema; empty: all samples."""
    key: str = ""
    """The value's key in 16 hex digits, or others; empty: all samples."""
    samples: int = 0
    clicks: int = 0
    weight: float = 0.0
    """What the samples weigh; without weights their number."""
    logloss: float | None = None
    auc: float | None = None
    """None if all samples are of one class."""
    mean_prediction: float | None = None
    click_rate: float | None = None

    @property
    def calibration(self) -> float | None:
        """Mean prediction divided by the click rate; None: there is no click."""
        return self.mean_prediction / self.click_rate if self.mean_prediction is not None and self.click_rate else None


class CurveBin(msgspec.Struct, frozen=True, kw_only=True):
    """Samples with about the same prediction: a calibrated model predicts their click rate."""

    samples: int
    weight: float
    """What the samples weigh; without weights their number."""
    mean_prediction: float
    click_rate: float


class QualityWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive samples of a run."""

    first_step: int
    last_step: int
    samples_before: int
    """Samples of the run before this window."""
    quality: SliceQuality = SliceQuality()
    slices: tuple[SliceQuality, ...] = ()
    """The most frequent values of each field, most frequent first."""
    curve: tuple[CurveBin, ...] = ()
    """Bins of equal width in the log-odds of the prediction, without empty ones, lowest prediction first."""


class QualityOverTime(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a run's quality over time."""

    window_samples: int = 0
    """Samples of a window, at least."""
    windows: tuple[QualityWindow, ...] = ()
    """Closed windows, oldest first; slices and curve in the newest one only, unless asked for."""
    run: QualityWindow | None = None
    """All samples so far; None: there are none."""


class DriftAlarm(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was found."""

    what: str
    """label, or the table whose values changed."""
    step: int
    sample: int
    """The sample of the run, counted from 1, at which it was found."""
    before: float
    """Click rate before the change; for a table, the distance that raises an alarm."""
    after: float
    """Click rate of the samples since the change began; for a table, the distance of the window from the one before."""


class DriftStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How much the stream has changed."""

    fields: dict[str, float] = {}
    """Distance of the newest window from the one before, by table; empty before the second window."""
    alarms: tuple[DriftAlarm, ...] = ()
    """The latest ones, oldest first."""
    label_alarms: int = 0
    """All alarms of the click rate so far."""
    field_alarms: int = 0
