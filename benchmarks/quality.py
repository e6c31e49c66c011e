"""How well the model learns in one pass over a file, through the real pipeline, predict-then-train."""

from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from benchmarks.clicks import read_samples, write_topic
from dispatch.progress.quality import Quality
from dispatch.progress.status import KeyCounts
from infra.base.errors import FreshetError
from infra.base.process import Stop
from infra.run.cluster import Extras, run_cluster
from infra.run.display import Display
from infra.run.settings import load_settings


@dataclass(frozen=True)
class QualityResult:
    """Quality over the whole file and over its second half."""

    file: str
    samples: int
    batch: int
    workers: int
    model: str
    policy: str
    seconds: float
    samples_per_second: float
    keys: KeyCounts
    """Keys with rows at the end."""
    overall: Quality
    second_half: Quality


def run_quality(
    folder: Path, file: Path, dataset: str, batch: int, workers: int, overrides: list[str], stop: Stop, display: Display
) -> QualityResult:
    """Writes the file into a topic, trains on it once, and returns how good the predictions were."""
    fixed = [
        f"stream.folder={folder / 'log'}",
        f"stream.schema_name={dataset}",
        f"stream.batch={batch}",
        f"dispatch.workers={workers}",
        "dispatch.links_gbit=",
    ]
    settings = load_settings(None, [*fixed, *overrides], run="bench-quality", folder=folder)
    parts = read_samples(dataset, file, settings.event_schema)
    samples = write_topic(settings.stream, takewhile(lambda _: not stop.requested, parts))
    extras = Extras(api=False, stop_at_end=True, mark_at=max(1, samples // 2))
    summary = run_cluster(settings, extras, stop, display)
    status = summary.status
    if stop.requested or status.since_mark is None:
        raise FreshetError(
            f"no result: stopped by {summary.exit_reason} after {status.samples:,} samples; expected one whole pass "
            f"over {file}; let it run to its end"
        )
    return QualityResult(
        file=file.name,
        samples=status.samples,
        batch=batch,
        workers=workers,
        model=settings.model.name,
        policy=status.policy,
        seconds=status.seconds,
        samples_per_second=summary.samples_per_second,
        keys=status.keys,
        overall=status.quality,
        second_half=status.since_mark.quality,
    )
