"""Compares policies in real runs: the same events and seed, real processes, slow links, one run after the other.

Every run is like ``freshet up``: the embedded log, a dispatcher, shards, and workers behind links of given speeds.
``shaped``: each worker slows down what it sends and receives, both at once; a ring only as it sends. ``namespaces``:
the kernel shapes the network of each worker, so everything counts (infra/run/network.py).

The start and the first steps, in which caches fill, are excluded from every rate. All policies train the same model, so
their losses must agree; the results hold the losses of all runs.

Why the links are this slow: a policy saves transfer, so transfer must dominate a step. At the edge it does: a step
takes milliseconds of a GPU and moves megabytes over a radio link. Here all workers share a few cores, and the compute
of a step takes tens of milliseconds. Links of 200 and 20 Mbit/s are slower than the papers' 5 and 0.5 Gbit/s by about
as much as these cores are slower than a GPU, in the same proportion of ten to one.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import msgspec

from benchmarks.clicks import CHUNK, read_samples, write_topic
from benchmarks.cores import run_on, share_out_cores
from benchmarks.simulated.dispatch import Percentiles
from benchmarks.visits import Visits
from dispatch.placement.policies.registry import parse_spec
from dispatch.placement.traffic import WorkerTraffic
from dispatch.progress.status import SinceMark, Summary, WorkerStatus
from infra.base.errors import ConfigError, FreshetError
from infra.base.link_gbit import LinkGbit
from infra.base.process import Stop
from infra.base.wire import write_curve
from infra.run.checks import check_start
from infra.run.cluster import Extras, run_cluster
from infra.run.display import Display
from infra.run.network import Network, namespaces
from infra.run.settings import Settings, load_settings
from ingest.convert import Converter
from ingest.producing.synthetic import synthetic_events
from ingest.samples import Samples
from ingest.schema import Schema

FAST_GBIT = 0.2
SLOW_GBIT = 0.02
NetworkKind = Literal["shaped", "namespaces"]
NO_CHECKPOINTS = "checkpoints.seconds=0"
"""Unless --set says otherwise: a checkpoint takes seconds where links are slow, and in a run of half a minute it is
chance whether there is one.
"""
LOSS_TOLERANCE = 2e-4
"""How much losses may differ: floats are summed in another order, and every later step carries that on."""


@dataclass(frozen=True)
class Experiment:
    """What every policy is run on."""

    links_gbit: tuple[float, ...]
    batch: int
    """Samples per worker and step."""
    steps: int
    """Steps of each run, including the warm-up."""
    warm_up: int
    """First steps, excluded from every rate."""
    seed: int
    dataset: str
    file: Path | None
    overrides: tuple[str, ...] = ()
    """Settings of all runs, besides those that follow from the fields above."""
    network: NetworkKind = "shaped"
    """Whether links are slowed down in the workers or are those of a network."""
    own_cores: int = 0
    """Cores that each worker is pinned to, with as many threads of torch; 0: workers run anywhere."""
    is_told_links: bool = True
    """Whether runs are told how fast the links are; otherwise they measure it."""
    uplinks_gbit: tuple[float, ...] = ()
    """Speeds of the uplinks; empty: those of the links."""

    @property
    def workers(self) -> int:
        return len(self.links_gbit)

    @property
    def links(self) -> tuple[LinkGbit, ...]:
        return tuple(map(LinkGbit, self.links_gbit, self.uplinks_gbit or self.links_gbit))

    @property
    def link_settings(self) -> list[str]:
        """What tells a run how fast its links are; nothing if it has to measure it."""
        told = {"links_gbit": self.links_gbit}
        if any(link.own_uplink for link in self.links):
            told["uplinks_gbit"] = self.uplinks_gbit
        return [f"dispatch.{name}={','.join(map(str, speeds))}" for name, speeds in told.items() if self.is_told_links]

    def with_links(self, links: Sequence[LinkGbit]) -> "Experiment":
        """The same on these links."""
        down, up = zip(*links, strict=True)
        return replace(self, links_gbit=down, uplinks_gbit=up if self.uplinks_gbit else ())

    @property
    def whole_batch(self) -> int:
        return self.batch * self.workers


@dataclass(frozen=True)
class Variant:
    """A policy, and how its runs differ from the others': ``laia:parts@ring@2`` is in a ring, on two workers."""

    text: str
    policy: str
    workers: int | None = None
    """Only the first workers, which train the same batches; None: all."""
    overrides: tuple[str, ...] = ()

    def on(self, experiment: Experiment) -> Experiment:
        """The experiment that it is run on."""
        count = self.workers or experiment.workers
        if count > experiment.workers or experiment.whole_batch % count:
            raise ConfigError(
                f"{self.text} asks for {count} of {experiment.workers} workers and batches of "
                f"{experiment.whole_batch} samples; expected some of the workers, and equal parts; correct --policies"
            )
        chosen = (*experiment.overrides, *self.overrides)
        batch = experiment.whole_batch // count
        return replace(experiment.with_links(experiment.links[:count]), batch=batch, overrides=chosen)


def parse_variants(text: str) -> list[Variant]:
    """POLICY[@ring|@hub][@WORKERS][@SETTING=VALUE], several of them separated by commas."""
    return [_variant(each.strip()) for each in text.split(",")]


def _variant(text: str) -> Variant:
    policy, *marks = text.split("@")
    workers = None
    overrides = []
    for mark in marks:
        if mark in ("ring", "hub"):
            overrides.append(f"trainer.reduce={mark}")
        elif mark.isdecimal() and int(mark):
            workers = int(mark)
        elif "=" in mark:
            overrides.append(mark)
        else:
            raise ConfigError(
                f"{text} has a mark {mark!r}; expected ring, hub, a number of workers, or SETTING=VALUE after each @; "
                "correct --policies"
            )
    return Variant("@".join((str(parse_spec(policy)), *marks)), str(parse_spec(policy)), workers, tuple(overrides))


class Phases(msgspec.Struct, frozen=True):
    """Mean seconds of one worker's step."""

    push: float
    pull: float
    """Time from the request to the last row, including the time until others have pushed what is pulled."""
    compute: float
    wait: float
    """Time for other workers and for the next order: the rest of the step."""


class TrainResult(msgspec.Struct, frozen=True):
    """One policy: of its repeats the run with the median rate; lists are by worker unless named otherwise."""

    policy: str
    steps: int
    """Steps after the warm-up."""
    steps_per_second: float
    repeats: list[float]
    """Steps per second of every repeat."""
    speed_up: float
    """Steps per second relative to the first policy: the median of the ratios within a repeat."""
    samples_per_second: float
    logloss: float
    """Test-then-train logloss over all samples."""
    losses: list[float]
    """Losses of every repeat."""
    miss_pull: list[int]
    update_push: list[int]
    evict_push: list[int]
    moved_bytes: list[int]
    """Bytes of rows, their gradients summed in a ring included, and of the dense part, in both directions."""
    dense_bytes: list[int]
    """How many of these are of the dense part."""
    reduced_bytes: list[int]
    """How many of these are gradients of rows, summed in a ring."""
    order_bytes: list[int]
    """Bytes sent by the dispatcher, which are not among those moved."""
    report_bytes: list[int]
    """Bytes sent to the dispatcher, which are not among those moved."""
    samples: list[int]
    slowest: str
    """The worker that the others wait for."""
    slowest_seconds: Phases
    decide_ms: Percentiles
    deadline_misses: int


class MeasuredRun(NamedTuple):
    """One run of a policy."""

    summary: Summary
    folder: Path


Runs = dict[str, list[MeasuredRun]]
"""Runs of each policy, by its text, one after the other."""


def run_train(
    folder: Path, experiment: Experiment, policies: Sequence[Variant], repeat: int, stop: Stop, display: Display
) -> list[TrainResult]:
    """One result per policy."""
    runs = run_in_turn(folder, experiment, policies, repeat, stop, display)
    return compare({policy: [run.summary for run in measured] for policy, measured in runs.items()})


def run_in_turn(
    folder: Path, experiment: Experiment, policies: Sequence[Variant], repeat: int, stop: Stop, display: Display
) -> Runs:
    """Runs every policy once, then all again, so that a noisy minute affects all of them."""
    if experiment.network == "shaped":
        return _run_all(folder, experiment, policies, repeat, stop, display)
    with in_namespaces(folder, experiment) as (network, behind):
        return _run_all(folder, behind, policies, repeat, stop, display, network)


@contextmanager
def in_namespaces(folder: Path, experiment: Experiment) -> Iterator[tuple[Network, Experiment]]:
    """Inside, every worker has a network; yields it, and the experiment with the settings of runs there."""
    server_gbit = settings_of(folder, experiment, "esd:1", "topic").ps.link_gbit
    with namespaces(experiment.links, server_gbit) as network:
        keys = folder / "keys"
        write_curve(keys, ["server", *(f"worker-{number}" for number in range(experiment.workers))])
        there = (f"curve_folder={keys}", f"dispatch.endpoint=tcp://{network.host}:*")
        links = ("trainer.shape_link=false", "trainer.unencrypted_reduce=true")
        yield network, replace(experiment, overrides=(*there, *links, *experiment.overrides))


def _run_all(
    folder: Path,
    experiment: Experiment,
    policies: Sequence[Variant],
    repeat: int,
    stop: Stop,
    display: Display,
    network: Network | None = None,
) -> Runs:
    for variant in policies:
        check_variant(folder, experiment, variant)
    cores = share_out_cores(experiment.own_cores, experiment.workers)
    first = settings_of(folder, experiment, policies[0].policy, "topic")
    samples = write_topic(first.stream, samples_of(experiment, first.event_schema))
    steps = min(experiment.steps, samples // experiment.whole_batch)
    if steps <= experiment.warm_up + 1:
        raise ConfigError(
            f"{samples} samples make {steps} batches of {experiment.batch} × {experiment.workers}; expected at least "
            f"two more than the {experiment.warm_up} of the warm-up; give a longer file or lower --batch or --warm-up"
        )
    runs: Runs = {variant.text: [] for variant in policies}
    with run_on(cores.others):
        for number in range(repeat):
            for place, variant in enumerate(policies):
                own = variant.on(experiment)
                settings = settings_of(folder, own, variant.policy, f"{number}-{place}")
                extras = extras_of(own, steps, network, cores.by_worker)
                runs[variant.text].append(
                    MeasuredRun(run_to_its_end(settings, extras, steps, stop, display), settings.folder)
                )
    return runs


def check_variant(folder: Path, experiment: Experiment, variant: Variant) -> None:
    """Raises ConfigError, which names the variant, if one could not be run, before any of them is."""
    own = variant.on(experiment)
    try:
        check_start(settings_of(folder, own, variant.policy, "topic"))
    except ConfigError as error:
        raise ConfigError(f"{variant.text} on {own.workers} × {own.batch} samples cannot be run: {error}") from error


def compare(runs: Mapping[str, Sequence[Summary]]) -> list[TrainResult]:
    """One result per policy, from the summaries of its repeats, compared with the first policy."""
    first = next(iter(runs.values()))
    return [_result(policy, summaries, first) for policy, summaries in runs.items()]


class HasLosses(Protocol):
    """The losses of runs of one policy."""

    @property
    def policy(self) -> str: ...

    @property
    def losses(self) -> list[float]: ...


def check_losses(results: Sequence[HasLosses]) -> None:
    """Raises FreshetError if the policies did not train the same model."""
    losses = [loss for result in results for loss in result.losses]
    if not all(map(isfinite, losses)) or max(losses) - min(losses) > LOSS_TOLERANCE:
        listed = ", ".join(f"{result.policy} {loss:.6f}" for result in results for loss in result.losses)
        raise FreshetError(
            f"losses differ: {listed}; expected them within {LOSS_TOLERANCE:g}, as every policy trains the same model; "
            "where training is unstable small differences grow: lower rows.rate and model.dense_rate"
        )


def default_links(workers: int) -> tuple[LinkGbit, ...]:
    """Half of the workers behind fast links, half behind slow ones."""
    return (LinkGbit.of(FAST_GBIT),) * (workers - workers // 2) + (LinkGbit.of(SLOW_GBIT),) * (workers // 2)


def settings_of(folder: Path, experiment: Experiment, policy: str, name: str) -> Settings:
    fixed = [
        f"stream.folder={folder / 'log'}",
        f"stream.schema_name={experiment.dataset}",
        f"stream.batch={experiment.whole_batch}",
        "stream.first_batch=0",
        f"dispatch.workers={experiment.workers}",
        *experiment.link_settings,
        f"dispatch.policy={policy}",
        f"seed={experiment.seed}",
        *([f"trainer.threads={experiment.own_cores}"] if experiment.own_cores else []),
    ]
    return load_settings(None, [NO_CHECKPOINTS, *experiment.overrides, *fixed], run="bench-train", folder=folder / name)


def samples_of(experiment: Experiment, schema: Schema) -> Iterator[Samples]:
    """The first samples of the file or, without one, of a synthetic stream."""
    left = experiment.steps * experiment.whole_batch
    for samples in _source(experiment, schema, left):
        yield samples.slice(0, min(left, len(samples)))
        left -= len(samples)
        if left <= 0:
            return


def _source(experiment: Experiment, schema: Schema, wanted: int) -> Iterator[Samples]:
    if experiment.file is not None:
        return read_samples(experiment.dataset, experiment.file, schema)
    return made_up_clicks(experiment.dataset, schema, experiment.seed, wanted)


def made_up_clicks(dataset: str, schema: Schema, seed: int, wanted: int) -> Iterator[Samples]:
    """Endless clicks of the demo, for its own schema; that many of the shape of any other schema."""
    return _synthetic(seed, schema) if dataset == "synthetic" else Visits(schema, seed).samples(wanted)


def _synthetic(seed: int, schema: Schema) -> Iterator[Samples]:
    events = iter(synthetic_events(seed))
    converter = Converter(schema)
    while True:
        yield converter.convert_events(list(islice(events, CHUNK)))[0]


def extras_of(
    experiment: Experiment, steps: int, network: Network | None, cores: tuple[tuple[int, ...], ...] = ()
) -> Extras:
    batch = experiment.whole_batch
    mark_at = max(1, experiment.warm_up * batch)
    return Extras(api=False, samples=steps * batch, mark_at=mark_at, network=network, worker_cores=cores)


def run_to_its_end(settings: Settings, extras: Extras, steps: int, stop: Stop, display: Display) -> Summary:
    summary = run_cluster(settings, extras, stop, display)
    if stop.requested or summary.status.since_mark is None:
        raise FreshetError(
            f"no result: stopped by {summary.exit_reason} after {summary.status.steps:,} steps; expected {steps:,} of "
            "every policy; let it run to its end"
        )
    return summary


def _result(policy: str, runs: Sequence[Summary], first: Sequence[Summary]) -> TrainResult:
    rates = [settled_rate(run) for run in runs]
    run = sorted(runs, key=settled_rate)[(len(runs) - 1) // 2]
    measured = _measured(run)
    slowest, phases = _slowest(measured)
    ratios = sorted(settled_rate(own) / settled_rate(other) for own, other in zip(runs, first, strict=True))
    traffic = [worker.traffic for worker in measured.workers]
    return TrainResult(
        policy=policy,
        steps=measured.steps,
        steps_per_second=settled_rate(run),
        repeats=rates,
        speed_up=ratios[(len(ratios) - 1) // 2],
        samples_per_second=measured.samples / measured.seconds,
        logloss=loss_of(run),
        losses=[loss_of(each) for each in runs],
        miss_pull=[moved.miss_pulls for moved in traffic],
        update_push=[moved.update_pushes for moved in traffic],
        evict_push=[moved.evict_pushes for moved in traffic],
        moved_bytes=[_row_bytes(moved) + _dense_bytes(moved) for moved in traffic],
        dense_bytes=[_dense_bytes(moved) for moved in traffic],
        reduced_bytes=[2 * moved.reduced_bytes for moved in traffic],
        order_bytes=[moved.order_bytes for moved in traffic],
        report_bytes=[moved.report_bytes for moved in traffic],
        samples=[moved.samples for moved in traffic],
        slowest=slowest.name,
        slowest_seconds=phases,
        decide_ms=Percentiles(measured.decide_ms_p50, measured.decide_ms_p99),
        deadline_misses=measured.deadline_misses,
    )


def _row_bytes(moved: WorkerTraffic) -> int:
    return moved.pulled_bytes + moved.pushed_bytes + 2 * moved.reduced_bytes


def _dense_bytes(moved: WorkerTraffic) -> int:
    return moved.dense_up_bytes + moved.dense_down_bytes


def _measured(run: Summary) -> SinceMark:
    assert run.status.since_mark is not None
    return run.status.since_mark


def settled_rate(run: Summary) -> float:
    """Steps per second after the warm-up."""
    return _measured(run).steps / _measured(run).seconds


def loss_of(run: Summary) -> float:
    loss = run.status.quality.logloss
    return loss if loss is not None else float("nan")


def _slowest(measured: SinceMark) -> tuple[WorkerStatus, Phases]:
    """The worker that waits least, and the parts of its step."""
    step_seconds = measured.seconds / measured.steps

    def phases(worker: WorkerStatus) -> Phases:
        push = worker.seconds.push
        pull = worker.seconds.pull
        compute = worker.seconds.compute
        return Phases(push, pull, compute, max(0.0, step_seconds - push - pull - compute))

    slowest = min(measured.workers, key=lambda worker: phases(worker).wait)
    return slowest, phases(slowest)
