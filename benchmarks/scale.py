"""How far one dispatcher goes: the process of a real run, with simulated workers and shards in growing numbers.

The dispatcher is 'freshet dispatcher' itself, reading a topic of packed records; benchmarks/crowd.py speaks for
everyone else. It keeps spans with the processor time of its thread, from which the parts of a step are added up: they
are the same on a busy machine, and say what the loop could do if workers and shards took no time. Steps per second of
the clock also depend on the simulated times.
"""

import subprocess
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import psutil
from rich.table import Table

from benchmarks.clicks import made_up_samples, write_topic
from benchmarks.crowd import Crowd, CrowdJob, SentByDispatcher, ServiceTimes
from benchmarks.trace import read_spans
from infra.base.errors import FreshetError
from infra.base.parts import COMMAND
from infra.base.trace import FOLDER, Span
from infra.kafka.broker import free_port
from infra.run.agreement import agreement_of
from infra.run.settings import Settings, load_settings, store_settings

MOST_SPANS = 1_000_000
WARM_UP = 0.25
"""Share of the steps that is not counted: caches fill."""
PARTS = ("decide", "record", "announce", "order")
"""Spans of the loop, see dispatch/coordinator.py."""
WAITING = "complete"
"""The span in which the dispatcher waits for reports and handles them, among others in spans of the next name."""
POLL = "poll"
LOG = "dispatcher.log"
LINKS_GBIT = (5.0, 0.5)
"""Speeds of the links, in turn."""
END_SECONDS = 120.0
"""Longest time that the dispatcher may take to end once it has dismissed everyone."""


@dataclass(frozen=True)
class ScaleLoad:
    """What is measured."""

    schema: str
    batch: int
    """Samples of a step for each worker."""
    steps: int
    shards: int
    cache_rows: int
    times: ServiceTimes


@dataclass(frozen=True)
class ScaleResult:
    """Means of the steps after the warm-up; times are processor time of the dispatcher, in milliseconds a step."""

    policy: str
    workers: int
    batch: int
    """Samples of a step."""
    steps_per_second: float
    """By the clock, with the simulated times of workers and shards."""
    decide: float
    record: float
    announce: float
    """To shards."""
    order: float
    """To workers."""
    receive: float
    """Messages of workers and shards, and what follows from them."""
    loop: float
    """All of these: the loop is one thread."""
    most_steps_per_second: float
    """What the loop could do if nobody else took any time."""
    others: float
    """Of all other threads: reading events, sockets, what is left over from decisions."""
    orders: float
    """Number of orders of a step."""
    order_kilobytes: float
    """Sent to all workers."""
    announce_kilobytes: float
    """Sent to all shards."""
    memory_megabytes: float
    """Largest resident size."""


@dataclass(frozen=True)
class DispatcherReading:
    """What is known of the dispatcher at one time."""

    at: float
    step: int
    cpu_seconds: float


class DispatcherReadings:
    """Looks at the dispatcher's process when the warm-up ends and whenever a step begins."""

    def __init__(self, process: int, warm_up: int) -> None:
        self._process = psutil.Process(process)
        self._warm_up = warm_up
        self._step = 0
        self.first: DispatcherReading | None = None
        self.last: DispatcherReading | None = None
        self.memory_bytes = 0

    def look(self, step: int) -> None:
        """step: the newest of which an order arrived."""
        if step == self._step:
            return
        self._step = step
        with suppress(psutil.NoSuchProcess):
            times = self._process.cpu_times()
            self.memory_bytes = max(self.memory_bytes, self._process.memory_info().rss)
            reading = DispatcherReading(monotonic(), step, times.user + times.system)
            if self.first is None and self._step > self._warm_up:
                self.first = reading
            self.last = reading


def run_scale(policies: Sequence[str], workers: Sequence[int], load: ScaleLoad) -> Iterator[ScaleResult]:
    """Every policy with every number of workers, one after the other, on the same topic."""
    with TemporaryDirectory(prefix="freshet-") as place:
        settings = settings_of(Path(place), policies[0], 1, load)
        samples = max(workers) * load.batch * load.steps
        write_topic(settings.stream, made_up_samples(settings.event_schema, samples))
        for number, policy in product(workers, policies):
            yield measure(Path(place), policy, number, load)


def measure(place: Path, policy: str, workers: int, load: ScaleLoad) -> ScaleResult:
    """One run of the dispatcher, until it dismisses the workers. place: where the topic is."""
    with TemporaryDirectory(prefix="run-", dir=place) as folder, ExitStack() as resources:
        settings = settings_of(place, policy, workers, load, Path(folder))
        process = resources.enter_context(dispatcher(settings, workers * load.batch * load.steps))
        crowd = Crowd(crowd_job(settings, load), resources)
        readings = DispatcherReadings(process.pid, int(load.steps * WARM_UP))
        for _ in crowd.run():
            readings.look(crowd.sent.step)
            check(process, settings)
        process.wait(END_SECONDS)
        check(process, settings)
        (traced,) = read_spans(settings.folder / FOLDER)
    return result_of(settings, readings, crowd.sent, traced.spans)


def settings_of(place: Path, policy: str, workers: int, load: ScaleLoad, folder: Path | None = None) -> Settings:
    """Those of the dispatcher; the stand-ins agree with them."""
    chosen = {
        "folder": folder or place,
        "stream.folder": place / "log",
        "stream.schema_name": load.schema,
        "stream.batch": workers * load.batch,
        "stream.first_batch": 0,
        "dispatch.policy": policy,
        "dispatch.workers": workers,
        "dispatch.cache_rows": load.cache_rows,
        "dispatch.threads": 1,
        "dispatch.silence_seconds": 50,  # thousands of sockets of one process may be late
        "dispatch.report_seconds": 3600,
        "dispatch.endpoint": f"tcp://127.0.0.1:{free_port()}",
        "ps.shards": load.shards,
        "trainer.reduce": "hub",
        "checkpoints.seconds": 0,
        "telemetry.trace_spans": MOST_SPANS,
    }
    return load_settings(overrides=[f"{name}={value}" for name, value in chosen.items()])


def crowd_job(settings: Settings, load: ScaleLoad) -> CrowdJob:
    agreement = agreement_of(settings)
    workers = settings.dispatch.workers
    return CrowdJob(
        run=settings.run,
        endpoint=settings.dispatch.endpoint,
        links_gbit=tuple(LINKS_GBIT[number % len(LINKS_GBIT)] for number in range(workers)),
        shards=load.shards,
        worker_settings=agreement.workers,
        shard_settings=agreement.shards,
        times=load.times,
        row_bytes=4 * settings.scaled_rows.shape().total,
    )


@contextmanager
def dispatcher(settings: Settings, samples: int) -> Iterator["subprocess.Popen[bytes]"]:
    """The process of these settings, until it has trained so many samples."""
    store_settings(settings)
    argv = [*COMMAND, "dispatcher", "--run", str(settings.folder), "--samples", str(samples)]
    with (settings.folder / LOG).open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.kill()


def check(process: "subprocess.Popen[bytes]", settings: Settings) -> None:
    """Raises FreshetError with the end of its log if the dispatcher has failed."""
    if process.poll():
        end = (settings.folder / LOG).read_text(errors="replace").strip().splitlines()[-1:]
        raise FreshetError(f"the dispatcher ended with code {process.returncode}; expected 0; its log ends: {end}")


def result_of(
    settings: Settings, readings: DispatcherReadings, sent: SentByDispatcher, spans: Sequence[Span]
) -> ScaleResult:
    """Raises FreshetError if there were no steps after the warm-up."""
    first, last = readings.first, readings.last
    if first is None or last is None or first.step == last.step:
        raise FreshetError(
            f"{settings.dispatch.workers} workers had no steps after the warm-up; expected some; raise --steps"
        )
    counted_steps = range(first.step, last.step)
    steps = len(counted_steps)
    orders, order_bytes, announce_bytes = (
        sum(by_step[step] for step in counted_steps) / steps
        for by_step in (sent.orders, sent.order_bytes, sent.announce_bytes)
    )
    counted = [each for each in spans if first.at <= each.began < last.at]
    busy = {name: 1000 * seconds / steps for name, seconds in busy_seconds(counted).items()}
    loop = sum(busy.values())
    return ScaleResult(
        policy=settings.dispatch.policy,
        workers=settings.dispatch.workers,
        batch=settings.stream.batch,
        steps_per_second=steps / (last.at - first.at),
        **busy,
        loop=loop,
        most_steps_per_second=1000 / loop,
        others=1000 * (last.cpu_seconds - first.cpu_seconds) / steps - loop,
        orders=orders,
        order_kilobytes=order_bytes / 1000,
        announce_kilobytes=announce_bytes / 1000,
        memory_megabytes=readings.memory_bytes / 1e6,
    )


def busy_seconds(spans: Sequence[Span]) -> dict[str, float]:
    """Processor time of the loop by its parts."""
    parts = {name: sum(each.busy for each in spans if each.name == name) for name in PARTS}
    waits = sorted((each.began, each.ended) for each in spans if each.name == WAITING)
    starts = [began for began, _ in waits]
    received = sum(each.busy for each in spans if each.name == WAITING)
    for each in spans:
        if each.name == POLL:
            place = bisect_right(starts, each.began) - 1
            is_within = place >= 0 and each.began < waits[place][1]
            received += 0.0 if is_within else each.busy
    return {**parts, "receive": received}


def scale_table(results: Sequence[ScaleResult]) -> Table:
    """The results, a line each."""
    table = Table(title="processor time of a step, in ms; kB that the dispatcher sends a step", box=None)
    names = ("policy", "workers", "samples", "steps/s", "decide", "record", "announce", "order", "receive", "loop")
    for name in (*names, "most/s", "others", "orders kB", "shards kB", "MB"):
        table.add_column(name, justify="right" if table.columns else "left")
    for each in results:
        times = (each.decide, each.record, each.announce, each.order, each.receive, each.loop)
        table.add_row(
            each.policy,
            f"{each.workers:,}",
            f"{each.batch:,}",
            f"{each.steps_per_second:.2f}",
            *(f"{ms:,.1f}" for ms in times),
            f"{each.most_steps_per_second:,.2f}",
            f"{each.others:,.1f}",
            f"{each.order_kilobytes:,.0f}",
            f"{each.announce_kilobytes:,.0f}",
            f"{each.memory_megabytes:,.0f}",
        )
    return table


def plot_scale(results: Sequence[ScaleResult], file: Path) -> None:
    """Time of the loop over the number of workers, a line a policy; and its parts for the first policy."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    whole, parts = figure.subplots(1, 2, sharex=True, sharey=True)
    policies = list(dict.fromkeys(each.policy for each in results))
    for policy in policies:
        own = [each for each in results if each.policy == policy]
        whole.plot([each.workers for each in own], [each.loop for each in own], marker="o", label=policy)
    own = [each for each in results if each.policy == policies[-1]]
    for name in (*PARTS, "receive"):
        parts.plot([each.workers for each in own], [getattr(each, name) for each in own], marker="o", label=name)
    for axes, title in ((whole, "the loop"), (parts, f"its parts, {policies[-1]}")):
        axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="processor time of a step, ms", title=title)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.legend(frameon=False)
    figure.savefig(file, dpi=130)
