"""What a known key costs in every process, and whether a stream of ever new keys runs in constant memory.

1. parts: the structures of a dispatcher, a shard and a server are filled with keys, each in a process of its own, whose
   resident memory is compared with what the formula of docs/memory.md says
2. endless: a real run with a server trains samples half of whose keys occur once and never again; keys are forgotten
   after a while. The resident memory of every process and the bytes on disk are sampled until the end.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path

import msgspec
import numpy as np
import psutil
from numpy.typing import NDArray

from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import NO_ROWS, Index
from dispatch.progress.status import Status
from infra.base.distinct import number_keys
from infra.base.errors import FreshetError
from infra.base.mixing import GAMMA
from infra.base.run_folder import STATUS_WORD, dispatcher_endpoint
from infra.chaos.main import ChaosJob, SupervisedRun, running
from infra.run.cluster import StatusSubscription
from ingest.codec.packed import PackedCodec
from ingest.log.embedded import LogWriter
from ingest.samples import Samples
from ingest.schema import load_schema, without_crosses
from ps.checkpoints.restore import ModelSettings
from ps.config import RowConfig
from ps.optimizers import rule_of
from ps.parts import Parts
from serving.rows.index import GROWTH

PRUNED_SHARD = "shard, pruned"
PARTS = ("dispatcher", "shard", PRUNED_SHARD, "server")
CHUNKS = 2
"""Chunks of the rows of a pruned shard, of which all are pruned."""
FILLED_KEYS = 1 << 16
"""Keys that are added at a time."""
WARM_UP_KEYS = 2000
CHUNK_ROWS = 1 << 16
SCHEMA = "criteo"
RECORD_SAMPLES = 64
POOL_KEYS = 200_000
"""Keys that occur again and again."""
AHEAD_SAMPLES = 200_000
"""Samples that are written ahead of training."""
SAMPLE_SECONDS = 1.0
PATIENCE_SECONDS = 600.0
MIB = 1 << 20
SETTINGS = (
    *(
        "dispatch.workers=2",
        "ps.shards=2",
        "stream.batch=2048",
        "stream.first_batch=0",
        "stream.crosses=false",
        "rows.dim=8",
        f"stream.schema_name={SCHEMA}",
    ),
    *("stream.partitions=1", "api.port=0", "serving.port=0", "checkpoints.seconds=5", "checkpoints.kept=2"),
    *("dispatch.journal_bytes=16777216", "dispatch.cache_rows=262144"),
)
"""Settings of the endless run, before those that are given."""


class KeyBytes(msgspec.Struct, frozen=True):
    """Bytes that a known key costs a process: the least, and the most, shortly after arrays have grown."""

    least: float
    most: float


def expected_bytes(part: str, workers: int, rows: RowConfig) -> KeyBytes:
    """The formula of docs/memory.md."""
    shape = rows.shape()
    if part == "shard":
        return KeyBytes(rows.key_bytes, rows.key_bytes)
    if part == PRUNED_SHARD:
        without_chunks = rows.model_copy(update={"chunks": CHUNKS}).key_bytes
        return KeyBytes(without_chunks, without_chunks)
    if part == "server":
        copy = shape.value * 4 + 8
        return KeyBytes(2 * (copy + 6.0), 2 * (GROWTH * copy + 12.0))
    states = 8 * (1 + ceil(workers / 64))
    return KeyBytes(8 + 6.0 + states, 8 + 12.0 + states)


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class PartMemory:
    """Measured bytes of a key, in a process of its own."""

    part: str
    keys: int
    workers: int
    bytes_per_key: float
    least: float
    most: float


def measure_parts(keys: Sequence[int], workers: Sequence[int], rows: RowConfig) -> list[PartMemory]:
    """Every part with every number of keys; only a dispatcher's memory depends on the number of workers."""
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload([__name__])  # loads libraries once, for processes that have nothing else
    results = []
    for part in PARTS:
        for count in keys:
            for several in workers if part == "dispatcher" else workers[:1]:
                with forking.Pool(1) as pool:
                    nbytes = pool.apply(fill, (part, count, several, rows))
                expected = expected_bytes(part, several, rows)
                results.append(PartMemory(part, count, several, nbytes / count, expected.least, expected.most))
    return results


def fill(part: str, keys: int, workers: int, rows: RowConfig) -> int:
    """Fills a part with keys; returns by how many bytes the resident memory of this process has grown."""
    fills: dict[str, Callable[[int, int, RowConfig], object]] = {
        "dispatcher": _fill_dispatcher,
        "shard": _fill_shard,
        PRUNED_SHARD: _fill_pruned_shard,
        "server": _fill_server,
    }
    fills[part](WARM_UP_KEYS, workers, rows)  # compiles, and loads libraries
    process = psutil.Process()
    before = process.memory_info().rss
    kept = fills[part](keys, workers, rows)
    grown = process.memory_info().rss - before
    del kept
    return int(grown)


def _key_blocks(keys: int) -> Iterator[NDArray[np.uint64]]:
    for first in range(0, keys, FILLED_KEYS):
        yield made_up_keys(first, min(FILLED_KEYS, keys - first))


def made_up_keys(first: int, count: int) -> NDArray[np.uint64]:
    """Different keys for different numbers, spread over all values."""
    return (np.arange(first, first + count, dtype=np.uint64) + np.uint64(1)) * np.uint64(GAMMA)


def _fill_dispatcher(keys: int, workers: int, _rows: RowConfig) -> object:
    index = Index()
    directory = Directory(np.full(workers, 1024, np.int64), "emark", 1)
    for block in _key_blocks(keys):
        directory.look_up(index.resolve(number_keys(block.reshape(-1, 1))))
    directory.load(np.ones(keys, np.int64))  # memory that nobody has written to is not provided
    return index, directory


def _fill_shard(keys: int, _workers: int, rows: RowConfig) -> object:
    return _fill_store(keys, rows, are_bare=False)


def _fill_pruned_shard(keys: int, _workers: int, rows: RowConfig) -> object:
    return _fill_store(keys, rows.model_copy(update={"chunks": CHUNKS}), are_bare=True)


def _fill_store(keys: int, rows: RowConfig, are_bare: bool) -> object:
    store = ModelSettings(rows, 0, CHUNK_ROWS).empty_store()
    parts = Parts(store, rule_of(rows))
    for block in _key_blocks(keys):
        numbers = np.arange(len(store), len(store) + len(block))
        store.create(numbers, block, numbers if are_bare else NO_ROWS)
    last = np.array([keys - 1])
    parts.add(0, last, np.zeros((1, rows.shape().part), rows.float_dtype))
    return store, parts


def _fill_server(keys: int, _workers: int, rows: RowConfig) -> object:
    import torch

    from serving.rows.table import RowTable

    tables = [RowTable(rows, 0, torch.float32, torch.device("cpu")) for _ in range(2)]
    for table in tables:
        table.reserve(keys)
        first = 0
        for block in _key_blocks(keys):
            values = np.full((len(block), rows.shape().value), 0.5, np.float32)
            table.put(np.arange(first, first + len(block)), block, values)
            first += len(block)
        table.enter()
    return tables


# ── endless ───────────────────────────────────────────────────────────────────────────────────────────────────────────
class Moment(msgspec.Struct, frozen=True):
    """A run at one time."""

    samples: int
    """Samples trained."""
    keys: int
    """Keys known."""
    forgotten: int
    """Keys forgotten so far."""
    disk_bytes: int
    rss_bytes: dict[str, int]
    """Resident memory by process."""


@dataclass(frozen=True)
class ProcessMemory:
    """The most memory of a process, or the most bytes on disk, in each half of the samples."""

    name: str
    first_half_mib: float
    second_half_mib: float
    ratio: float


@dataclass(frozen=True)
class EndlessResult:
    """An endless stream."""

    sightings: int
    """Keys of all samples."""
    settled_keys: int
    end_keys: int
    forgotten: int
    seconds: float
    processes: list[ProcessMemory]
    moments: list[Moment]


def run_endless(
    folder: Path, sightings: int, expire_steps: int, settings: Sequence[str], tell: Callable[[str], None]
) -> EndlessResult:
    """Trains so many keys, half of them new ones."""
    schema = without_crosses(load_schema(SCHEMA))
    samples = ceil(sightings / schema.fields)
    stream = f"stream.folder={folder / 'log'}", f"memory.expire_steps={expire_steps}"
    overrides = (*SETTINGS, *stream, *settings)
    job = ChaosJob(
        folder / "run",
        0,
        0.0,
        0.0,
        0.0,
        tuple(part for override in overrides for part in ("--set", override)),
        PATIENCE_SECONDS,
        serves=True,
    )
    job.folder.mkdir(parents=True)
    began = time.monotonic()
    moments: list[Moment] = []
    with closing(EndlessStream(folder / "log")) as stream_of_keys:
        stream_of_keys.write(AHEAD_SAMPLES)
        published_at = partial(dispatcher_endpoint, job.folder, STATUS_WORD)
        with running(job) as run, StatusSubscription(published_at, None) as statuses:
            while not moments or moments[-1].samples < samples:
                time.sleep(SAMPLE_SECONDS)
                run.revive()
                moments.append(_moment(run, statuses.newest(), folder))
                stream_of_keys.write(moments[-1].samples + AHEAD_SAMPLES - stream_of_keys.written)
                if len(moments) % 20 == 0:
                    tell(f"{moments[-1].samples:,} of {samples:,} samples, {moments[-1].keys:,} keys known")
                if time.monotonic() - began > PATIENCE_SECONDS and not moments[-1].samples:
                    raise FreshetError(f"nothing was trained in {PATIENCE_SECONDS:g} s; see {job.folder}")
    return summed_up(moments, schema.fields, time.monotonic() - began)


class EndlessStream:
    """Writes samples: every second key is new, and never comes again."""

    def __init__(self, folder: Path) -> None:
        self.written = 0
        self._codec = PackedCodec(without_crosses(load_schema(SCHEMA)))
        self._writer = LogWriter(folder, "clicks", 1, segment_bytes=16 * MIB, retention_bytes=64 * MIB)
        self._random = np.random.default_rng(0)
        self._new = 0

    def write(self, samples: int) -> None:
        """Writes about so many more samples."""
        for _ in range(0, samples, RECORD_SAMPLES):
            self._writer.append(0, [(None, self._codec.encode(self._samples(RECORD_SAMPLES)))])
            self.written += RECORD_SAMPLES

    def close(self) -> None:
        self._writer.close()

    def _samples(self, count: int) -> Samples:
        schema = self._codec.schema
        keys_BF = made_up_keys(0, POOL_KEYS)[self._random.integers(POOL_KEYS, size=(count, schema.fields))]
        new = count * (schema.fields // 2)
        keys_BF[:, : schema.fields // 2] = made_up_keys(POOL_KEYS + self._new, new).reshape(count, -1)
        self._new += new
        labels_B = (self._random.random(count) < 0.2).astype(np.float32)
        return Samples(labels_B, np.zeros((count, schema.dense), np.float32), keys_BF, np.full(count, time.time()))


def _moment(run: SupervisedRun, status: Status | None, folder: Path) -> Moment:
    return Moment(
        samples=status.samples if status is not None else 0,
        keys=status.keys.known if status is not None else 0,
        forgotten=status.keys.forgotten if status is not None else 0,
        disk_bytes=_disk_bytes(folder),
        rss_bytes=_resident(run),
    )


def _resident(run: SupervisedRun) -> dict[str, int]:
    found = {}
    for name, process in run.processes().items():
        try:
            found[name] = process.memory_info().rss
        except psutil.Error:  # it has just ended
            continue
    return found


def _disk_bytes(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def summed_up(moments: list[Moment], fields: int, seconds: float) -> EndlessResult:
    """Compares the most of the second half with the most of the first, in which the number of keys has settled."""
    last = moments[-1]
    middle = min(range(len(moments)), key=lambda number: abs(moments[number].samples - last.samples / 2))
    first, second = moments[: middle + 1], moments[middle:]
    compared = [
        _compared(name, [m.rss_bytes.get(name, 0) for m in first], [m.rss_bytes.get(name, 0) for m in second])
        for name in sorted(moments[middle].rss_bytes)
    ]
    compared.append(_compared("disk", [m.disk_bytes for m in first], [m.disk_bytes for m in second]))
    return EndlessResult(
        sightings=last.samples * fields,
        settled_keys=moments[middle].keys,
        end_keys=last.keys,
        forgotten=last.forgotten,
        seconds=seconds,
        processes=compared,
        moments=moments,
    )


def _compared(name: str, first: Sequence[int], second: Sequence[int]) -> ProcessMemory:
    before = max(first) / MIB
    after = max(second) / MIB
    return ProcessMemory(name, before, after, after / before)
