"""Quality of a run over time, as its dispatcher measures it."""

from infra.web.answers import Answer


class SliceReading(Answer):
    """Quality over all samples, or over those with one value of a field."""

    field: str
    """Table of the schema; empty: all samples."""
    key: str
    """The value's key in 16 hex digits, or others; empty: all samples."""
    value: str | None
    """The value as JSON; null if no event that was examined has it."""
    samples: int
    clicks: int
    weight: float
    """What the samples weigh; without weights their number."""
    logloss: float | None
    auc: float | None
    mean_prediction: float | None
    click_rate: float | None


class CurveReading(Answer):
    """Samples with about the same prediction; a calibrated model predicts their click rate."""

    samples: int
    weight: float
    """What the samples weigh; without weights their number."""
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


class DriftAlarmReading(Answer):
    """A change that was found."""

    what: str
    """label, or the table whose values changed."""
    step: int
    sample: int
    """The sample of the run at which it was found."""
    before: float
    """Click rate before; for a table, the distance that raises an alarm."""
    after: float
    """Click rate since the change began; for a table, the distance of the window from the one before."""


class DriftAnswer(Answer):
    """How much the stream has changed."""

    fields: dict[str, float]
    """Jensen-Shannon distance of the newest window from the one before, by table."""
    alarms: list[DriftAlarmReading]
    """The latest ones, oldest first."""
    label_alarms: int
    """All alarms of the click rate so far."""
    field_alarms: int
