"""How far rows can be pruned: memory of the shards against quality, in real runs over one file.

1. count: the file becomes a topic, and its distinct keys are counted
2. run: for every number of columns once with whole rows, then for every number of chunks and every share that is kept
   with a budget of that share of the chunks of all keys; and with every share of the columns in the same memory. One
   pass, predict-then-train
3. idle: a shard with the same settings and the keys of one sample says what a shard takes without rows

Rounds of pruning come after a number of samples, not of steps, so that tables with different batches can be compared. A
budget without room for a row a sample of a batch is refused: such a line has the reason instead of figures.

The most live chunks are exact: between two rounds they only become more, and the dispatcher logs what each round found.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product, takewhile
from pathlib import Path

import msgspec
import numpy as np
import psutil
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.clicks import read_samples, write_topic
from dispatch.job import prune_terms
from dispatch.placement.rows.pruning import profile_of
from dispatch.progress.quality import Quality
from dispatch.progress.status import Status, Summary
from infra.base.errors import ConfigError, FreshetError
from infra.base.process import Stop
from infra.run.checks import check_start
from infra.run.cluster import Extras, run_cluster
from infra.run.display import Display
from infra.run.settings import Settings, load_settings
from infra.verify.leftovers import processes_of
from ingest.samples import Samples
from ps.config import RowConfig

ROUND_SAMPLES = 8192
"""Samples between two rounds of pruning: 8 steps of 1,024."""
HALF_LIFE_SAMPLES = 69 * 1024
"""Samples after which a use counts half as much: about 0.99 of it is left after 1,024."""
IDLE_STEPS = 8
IDLE_ROUND_STEPS = 2
ROUND_EVENT = "chunks of rows pruned"
REST_SECONDS = 0.5
"""How long shards rest before their memory is read at the end of a run."""
MIB = 1 << 20
SETTINGS = (
    *(
        "dispatch.links_gbit=",
        "dispatch.uplinks_gbit=",
        "ps.shards=1",
        "memory.prune_spare=0.1",
        "telemetry.log_format=json",
    ),
    *("checkpoints.seconds=0", "checkpoints.deltas=400"),
)
"""Settings of all runs, before those that are given: files of checkpoints are not merged, which would map them."""
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""Environment of all runs: the allocator gives large arrays back as soon as they are freed, so that copies of rows for
messages and checkpoints are not taken for rows. Otherwise glibc keeps some tens of megabytes.
"""


@dataclass(frozen=True)
class PruneLoad:
    """What is compared."""

    file: Path
    dataset: str
    dims: tuple[int, ...]
    chunks: tuple[int, ...]
    keeps: tuple[float, ...]
    """Shares of the chunks of all keys that the budget has room for; 1: rows are whole."""
    batch: int
    workers: int
    columns: tuple[float, ...] = (1.0,)
    """Shares of the columns that the first round leaves, in the same memory."""
    utility: str = "gradient"
    shape: str = "dynamic"
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kept:
    """What one run keeps: a line of the table."""

    dim: int
    chunks: int
    """Chunks of a row; 0: rows are whole."""
    keep: float
    columns: float = 1.0


class PruneResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run, or why it was refused."""

    dim: int
    chunks: int
    keep: float
    columns: float = 1.0
    """Share of the columns that the first round leaves."""
    file: str
    batch: int
    workers: int
    keys: int
    """Distinct keys of the file."""
    budget: int = 0
    """Most live chunks allowed; 0: rows are whole."""
    refused: str = ""
    """Why the run was not begun; empty: it was."""
    samples: int = 0
    live: int = 0
    """Live chunks at the end."""
    live_share: float = 1.0
    """The same over the chunks of all keys."""
    most_live: int = 0
    """Most live chunks at any time."""
    shards_bytes: int = 0
    """Resident memory of all shards, with their libraries, at the end."""
    most_shards_bytes: int = 0
    """The most of it at any time, with copies for checkpoints."""
    counted_bytes: int = 0
    """What the rows of all keys take at the end, counted: key, last step, head, places and live chunks."""
    idle_bytes: int = 0
    """Resident memory of as many shards that have the keys of one sample."""
    pulled_bytes: int = 0
    pushed_bytes: int = 0
    samples_per_second: float = 0.0
    rounds: int = 0
    pruned: int = 0
    """Chunks pruned in all rounds."""
    brought_back: int = 0
    longest_round_seconds: float = 0.0
    """Longest time for which no step was begun because of a round, with the steps that it waited for."""
    overall: Quality = Quality()
    second_half: Quality = Quality()

    @property
    def name(self) -> str:
        narrow = f", {self.columns:g} of the columns" if self.columns < 1.0 else ""
        return f"dim {self.dim}, " + (f"{self.chunks} × {self.keep:g}{narrow}" if self.chunks else "whole rows")

    @property
    def rows_bytes(self) -> int:
        """What rows take: the resident memory above that of idle shards."""
        return self.shards_bytes - self.idle_bytes


class LoggedRounds(msgspec.Struct, frozen=True):
    """What the dispatcher's log says about rounds of pruning."""

    count: int = 0
    most_live: int = 0
    """Most live chunks that a round found."""
    longest_seconds: float = 0.0


class EndedRun(msgspec.Struct, frozen=True):
    """A run that has ended."""

    summary: Summary
    rounds: LoggedRounds
    shards_bytes: int
    most_shards_bytes: int


# ── what is run ───────────────────────────────────────────────────────────────────────────────────────────────────────
def variants(load: PruneLoad) -> list[Kept]:
    """Whole rows once for each number of columns, then every share of every number of chunks."""
    found = []
    for dim in load.dims:
        found += [Kept(dim, 0, 1.0)] if 1.0 in load.keeps else []
        pruned = product(load.chunks, load.columns, [keep for keep in load.keeps if keep < 1.0])
        found += [Kept(dim, chunks, keep, columns) for chunks, columns, keep in pruned]
    return found


def check_load(load: PruneLoad) -> None:
    """Raises ConfigError for what cannot be run with any budget, before anything is written or counted."""
    for variant in variants(load):
        if variant.chunks:
            settings_of(Path(), load, variant, keys=1)
            profile_of(load.shape, variant.chunks)
        check_start(settings_of(Path(), load, Kept(variant.dim, 0, 1.0), keys=1))


def budget_of(variant: Kept, keys: int) -> int:
    """Chunks that are kept at most."""
    return int(variant.keep * variant.chunks * keys) if variant.chunks else 0


def settings_of(folder: Path, load: PruneLoad, variant: Kept, keys: int, name: str = "run") -> Settings:
    fixed = [
        f"stream.folder={folder / 'log'}",
        f"stream.schema_name={load.dataset}",
        f"stream.batch={load.batch}",
        f"dispatch.workers={load.workers}",
        f"rows.dim={variant.dim}",
    ]
    if variant.chunks:
        fixed += [
            f"rows.chunks={variant.chunks}",
            f"rows.utility={load.utility}",
            f"rows.half_life_steps={max(1, HALF_LIFE_SAMPLES // load.batch)}",
            f"memory.prune_steps={max(1, ROUND_SAMPLES // load.batch)}",
            f"memory.prune_shape={load.shape}",
            f"memory.columns={variant.columns!r}",
        ]
    asked = [*SETTINGS, *fixed, *load.overrides]
    settings = load_settings(None, asked, run="bench-prune", folder=folder / name)
    if not variant.chunks:
        return settings
    chunk_bytes = settings.rows.chunk_bytes()
    budget_mb = (budget_of(variant, keys) + 0.5) * chunk_bytes / MIB  # half a chunk more: it is rounded down
    return load_settings(None, [*asked, f"memory.budget_mb={budget_mb!r}"], run="bench-prune", folder=folder / name)


# ── 1. count ──────────────────────────────────────────────────────────────────────────────────────────────────────────
class KeyCounter:
    """Passes samples on, and counts their distinct keys."""

    def __init__(self) -> None:
        self._keys: NDArray[np.uint64] = np.empty(0, np.uint64)
        self.first: Samples | None = None
        """The first sample."""

    def __len__(self) -> int:
        return len(self._keys)

    def passing(self, parts: Iterator[Samples]) -> Iterator[Samples]:
        for samples in parts:
            self.first = self.first or samples.slice(0, 1)
            self._keys = np.union1d(self._keys, samples.keys_BF.reshape(-1))
            yield samples


def repeated(sample: Samples, times: int) -> Samples:
    """One sample again and again."""
    return Samples(
        np.repeat(sample.labels_B, times),
        np.repeat(sample.dense_BN, times, axis=0),
        np.repeat(sample.keys_BF, times, axis=0),
        np.repeat(sample.times_B, times),
    )


# ── 2. run ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def run_prune(
    folder: Path, load: PruneLoad, stop: Stop, console: Console, tell: Callable[[str], None]
) -> list[PruneResult]:
    """One result for each variant."""
    check_load(load)
    count = KeyCounter()
    first = settings_of(folder, load, Kept(load.dims[0], 0, 1.0), keys=0)
    parts = read_samples(load.dataset, load.file, first.event_schema)
    samples = write_topic(first.stream, count.passing(takewhile(lambda _: not stop.requested, parts)))
    if count.first is None:
        raise ConfigError(f"{load.file} has no samples; expected some; give another file")
    write_topic(
        settings_of(folder / "idle", load, Kept(load.dims[0], 0, 1.0), keys=0).stream,
        iter([repeated(count.first, IDLE_STEPS * load.batch)]),
    )
    tell(f"{samples:,} samples, {len(count):,} distinct keys")
    bench = PruneBench(folder, load, samples, len(count), stop, console)
    results = []
    for variant in variants(load):
        results.append(bench.result(variant))
        tell(f"{results[-1].name}: {results[-1].refused or results[-1].overall.logloss}")
    return results


@dataclass
class PruneBench:
    """Runs variants, one after the other, on a topic that is written."""

    folder: Path
    load: PruneLoad
    samples: int
    keys: int
    stop: Stop
    console: Console
    _idle: dict[tuple[int, int], int] = field(default_factory=dict)
    """Memory of idle shards, by columns and chunks."""

    def result(self, variant: Kept) -> PruneResult:
        name = f"dim-{variant.dim}-chunks-{variant.chunks}-keep-{variant.keep:g}-columns-{variant.columns:g}"
        settings = settings_of(self.folder, self.load, variant, self.keys, name)
        known = PruneResult(
            dim=variant.dim,
            chunks=variant.chunks,
            keep=variant.keep,
            columns=variant.columns,
            file=self.load.file.name,
            batch=self.load.batch,
            workers=self.load.workers,
            keys=self.keys,
            budget=budget_of(variant, self.keys),
        )
        try:
            terms = prune_terms(settings.rows, settings.memory, settings.stream.batch)
        except ConfigError as error:
            return msgspec.structs.replace(known, refused=str(error))
        if terms.drops_columns:
            known = msgspec.structs.replace(known, budget=known.budget * terms.width // terms.kept_width)
        run = self._run(settings, self.samples)
        chunks = run.summary.status.chunks
        counted = counted_bytes(settings.rows, self.keys, chunks.live, chunks.bytes)
        return filled_in(known, run, counted, self._idle_bytes(variant))

    def _idle_bytes(self, variant: Kept) -> int:
        kind = variant.dim, variant.chunks
        if kind not in self._idle:
            often = f"memory.prune_steps={IDLE_ROUND_STEPS}"
            load = replace(self.load, overrides=(*self.load.overrides, often))
            settings = settings_of(
                self.folder / "idle", load, variant, self.keys, f"dim-{variant.dim}-chunks-{variant.chunks}"
            )
            self._idle[kind] = self._run(settings, IDLE_STEPS * self.load.batch).shards_bytes
        return self._idle[kind]

    def _run(self, settings: Settings, samples: int) -> EndedRun:
        watch = ShardWatch(self.console, settings.folder)
        extras = Extras(api=False, stop_at_end=True, mark_at=max(1, samples // 2))
        summary = run_cluster(settings, extras, self.stop, watch)
        if self.stop.requested or summary.status.since_mark is None or summary.status.samples < samples:
            raise FreshetError(
                f"no result: stopped by {summary.exit_reason} after {summary.status.samples:,} samples; expected one "
                f"whole pass of {samples:,}; let it run to its end"
            )
        rounds = read_rounds(settings.folder / "logs" / "dispatcher.log")
        return EndedRun(summary, rounds, watch.last_bytes, watch.most_bytes)


class ShardWatch(Display):
    """Shows a run, and reads the resident memory of its shards meanwhile.

    The last reading is one of shards that rest: the run is done, and copies for its last checkpoint are freed. They are
    not stopped before ``show`` returns.
    """

    def __init__(self, console: Console, folder: Path) -> None:
        super().__init__(console)
        self._folder = folder
        self._shards: list[psutil.Process] = []
        self._is_done = False
        self.last_bytes = 0
        """Memory of all shards when it was last read."""
        self.most_bytes = 0

    def show(self, status: Status, awaited: Sequence[str] = ()) -> None:
        super().show(status, awaited)
        if self._is_done or not status.steps:
            return
        if status.state == "done":
            self._is_done = True
            time.sleep(REST_SECONDS)
        self._read()

    def _read(self) -> None:
        try:
            self._shards = self._shards or [found for name, found in processes_of(self._folder) if name[:3] == "ps-"]
            found = sum(shard.memory_info().rss for shard in self._shards)
        except psutil.Error:  # one has just ended
            self._shards = []
            return
        self.last_bytes = found or self.last_bytes
        self.most_bytes = max(self.most_bytes, found)


class _Line(msgspec.Struct):
    """A line of a log, with what is known of a round."""

    event: str = ""
    seconds: float = 0.0
    live: int = 0
    pruned: int = 0
    brought_back: int = 0


def read_rounds(log: Path) -> LoggedRounds:
    """What the log of a dispatcher, in JSON, says about rounds of pruning."""
    rounds = [
        msgspec.json.decode(line, type=_Line) for line in log.read_bytes().splitlines() if ROUND_EVENT.encode() in line
    ]
    return LoggedRounds(
        count=len(rounds),
        most_live=max((done.live + done.pruned - done.brought_back for done in rounds), default=0),
        longest_seconds=max((done.seconds for done in rounds), default=0.0),
    )


def counted_bytes(rows: RowConfig, keys: int, live: int, chunk_bytes: int) -> int:
    """What rows take on shards, by the formula of docs/memory.md."""
    return keys * rows.key_bytes + live * chunk_bytes


def filled_in(known: PruneResult, run: EndedRun, counted: int, idle_bytes: int) -> PruneResult:
    """The result with the figures of its run."""
    status = run.summary.status
    assert status.since_mark is not None
    chunks = status.chunks
    return msgspec.structs.replace(
        known,
        samples=status.samples,
        live=chunks.live,
        live_share=chunks.live / (known.chunks * known.keys) if known.chunks else 1.0,
        most_live=max(run.rounds.most_live, chunks.live),
        shards_bytes=run.shards_bytes,
        most_shards_bytes=run.most_shards_bytes,
        counted_bytes=counted,
        idle_bytes=idle_bytes,
        pulled_bytes=sum(worker.traffic.pulled_bytes for worker in status.workers),
        pushed_bytes=sum(worker.traffic.pushed_bytes for worker in status.workers),
        samples_per_second=run.summary.samples_per_second,
        rounds=run.rounds.count,
        pruned=chunks.pruned,
        brought_back=chunks.brought_back,
        longest_round_seconds=run.rounds.longest_seconds,
        overall=status.quality,
        second_half=status.since_mark.quality,
    )


def check_budgets(results: Sequence[PruneResult]) -> None:
    """Raises FreshetError if there were ever more live chunks than the budget allows."""
    over = [result for result in results if result.budget and result.most_live > result.budget]
    if over:
        listed = ", ".join(f"{result.most_live} of {result.budget} ({result.name})" for result in over)
        raise FreshetError(f"more chunks were live than the budget allows: {listed}; expected never more; see the logs")
