"""What Freshet adds to a training step: the whole pipeline against a plain loop, on the same batches.

The pipeline is real processes: dispatcher, one PS shard, one worker, links not shaped. The plain loop is one process
with every row in one table on the same device, and is given row numbers instead of keys. Both run in turn, twice; the
ratio is of medians. On a GPU the limit is measured too: the same loop with each step captured as one graph.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.captured import CapturedLoop, KnownBatch
from benchmarks.clicks import made_up_samples, read_samples, write_topic
from dispatch.placement.rows.index import Index
from dispatch.progress.status import Summary
from infra.base.distinct import number_keys
from infra.base.process import Stop
from infra.run.cluster import Extras, run_cluster
from infra.run.display import Display
from infra.run.plain_loop import reference_of
from infra.run.settings import Settings, load_settings
from ingest.batches.job import LoaderJob
from ingest.batches.loader import Loader
from ingest.log.embedded import LogReader
from ingest.samples import Samples
from trainer.config import TrainerConfig
from trainer.worker import choose_device

WARM_STEPS = 20
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class StepResult:
    """Times of one step, in milliseconds."""

    batch: int
    steps: int
    model: str
    device: Device
    threads: int
    plain_ms: float
    limit_ms: float | None
    """The plain loop with each step captured as one graph; None without a GPU."""
    pipeline_ms: float
    ratio: float
    decide_ms: float
    phases_ms: dict[str, float]
    """Phases of the worker: push, pull, forward, backward, reduce, rows."""


def run_step(
    folder: Path,
    batch: int = 1024,
    steps: int = 90,
    dataset: str = "criteo",
    file: Path | None = None,
    device: Device = "cpu",
) -> StepResult:
    """Measures on a file, or on synthetic samples of the data set's shape."""
    choose_device(TrainerConfig(device=device))
    settings = _settings(folder / "first", dataset, batch, folder / "log", device)
    schema = settings.event_schema
    wanted = batch * steps
    parts = read_samples(dataset, file, schema) if file is not None else made_up_samples(schema, wanted)
    samples = min(wanted, write_topic(settings.stream, parts))
    plain = [_time_plain(settings, samples)]
    pipeline = [_time_pipeline(settings, samples)]
    plain.append(_time_plain(settings, samples))
    pipeline.append(_time_pipeline(_settings(folder / "second", dataset, batch, folder / "log", device), samples))
    plain_ms = min(plain)
    limit_ms = _time_captured(settings, samples) if device == "cuda" else None
    pipeline_ms = min(run.status.step_ms for run in pipeline)
    fastest = min(pipeline, key=lambda run: run.status.step_ms).status
    return StepResult(
        batch=batch,
        steps=samples // batch,
        model=settings.model.name,
        device=device,
        threads=torch.get_num_threads(),
        plain_ms=plain_ms,
        limit_ms=limit_ms,
        pipeline_ms=pipeline_ms,
        ratio=pipeline_ms / plain_ms,
        decide_ms=fastest.decisions.mean_ms,
        phases_ms={phase: 1000 * seconds for phase, seconds in fastest.workers[0].seconds.by_phase().items()},
    )


def _settings(folder: Path, dataset: str, batch: int, log: Path, device: Device) -> Settings:
    overrides = [
        f"stream.folder={log}",
        f"stream.schema_name={dataset}",
        f"stream.batch={batch}",
        "stream.first_batch=0",
        "dispatch.workers=1",
        "dispatch.links_gbit=",
        "dispatch.uplinks_gbit=",
        "dispatch.cache_rows=1000000",
        "ps.shards=1",
        f"trainer.device={device}",
    ]
    return load_settings(None, overrides, run="bench-step", folder=folder)


def _time_pipeline(settings: Settings, samples: int) -> Summary:
    quiet = Display(Console(stderr=True, quiet=True))
    return run_cluster(settings, Extras(api=False, samples=samples), Stop(), quiet)


def _time_plain(settings: Settings, samples: int) -> float:
    """Median milliseconds of a step, without the first ones."""
    device = torch.device(settings.trainer.device)
    reference = reference_of(settings, device)
    index = Index()
    times = []
    for batch in _batches(settings, samples):
        rows = index.resolve(number_keys(batch.keys_BF))
        rows_BF = torch.from_numpy(rows.rows_U[rows.local_BF])
        dense_BN = torch.from_numpy(batch.dense_BN.copy())
        labels_B = torch.from_numpy(batch.labels_B.copy())
        began = time.perf_counter()
        reference.grow(np.ascontiguousarray(rows.new_keys))
        reference.train(rows_BF.to(device), dense_BN.to(device), labels_B.to(device))
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return 1000 * median(times[WARM_STEPS:])


def _time_captured(settings: Settings, samples: int) -> float:
    """The same with every step captured as one graph."""
    index = Index()
    keys: list[NDArray[np.uint64]] = []
    batches = []
    for batch in _batches(settings, samples):
        if len(batch) < settings.stream.batch:
            continue
        rows = index.resolve(number_keys(batch.keys_BF))
        keys.append(np.ascontiguousarray(rows.new_keys))
        arrays = rows.rows_U, rows.local_BF, batch.dense_BN, batch.labels_B
        batches.append(KnownBatch(*(torch.from_numpy(array.copy()) for array in arrays)))
    largest = max(batches, key=lambda known: len(known.rows_U))
    loop = CapturedLoop(settings, np.concatenate(keys), largest, torch.device(settings.trainer.device))
    times = []
    for known in batches:
        began = time.perf_counter()
        loop.train(known)
        times.append(time.perf_counter() - began)
    return 1000 * median(times[WARM_STEPS:])


def _batches(settings: Settings, samples: int) -> list[Samples]:
    source = LogReader(settings.stream.folder, settings.stream.topic)
    job = LoaderJob(settings.event_schema, settings.stream.batch, limit=samples, stop_at_end=True)
    loader = Loader(source, job)
    batches = []
    while (batch := loader.next()) is not None:
        batches.append(batch.samples)
    loader.close()
    source.close()
    return batches
