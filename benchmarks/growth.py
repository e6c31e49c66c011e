"""Whether decisions pause while keys grow: every step brings new keys, until there are as many as wanted.

The worst of a few thousand decisions says more about growth than their median does, and more about other processes,
too, if the machine is busy. So processor seconds of the deciding thread are measured besides: what others take is not
in them.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from benchmarks.decide import SEED, SHARDS, WRITE_BEHIND, cache_too_small
from dispatch.placement.decide import Decider, warm_up
from dispatch.placement.errors import CacheTooSmall
from dispatch.placement.policies.registry import parse_spec
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import BatchRows, Index
from infra.base.distinct import BatchKeys, number_keys
from infra.base.kernels import threads, use_threads

NEW_FIELDS = 4
"""Fields of a sample whose keys are new; those of the others are known ones, few of them frequent."""
SKEW = 1.3
"""Exponent of the frequency of known keys."""
WARM_UP_STEPS = 3
RARE = 0.999


class Pauses(msgspec.Struct, frozen=True):
    """Milliseconds of one part of all steps, by the clock and of the processor."""

    median: float
    rare: float
    """One in a thousand takes longer."""
    worst: float
    cpu_median: float
    cpu_rare: float
    cpu_worst: float


@dataclass(frozen=True)
class GrowthResult:
    """Decisions from the first key to the last."""

    policy: str
    threads: int
    workers: int
    batch: int
    """Samples of a step."""
    keys: int
    """Keys known at the end."""
    steps: int
    bytes_per_key: float
    """Memory of the index and of who holds each row, without caches."""
    ahead: Pauses
    """Making keys distinct, in a thread of the loader."""
    look_up: Pauses
    """Of a decision: from keys to rows."""
    decide: Pauses


def run_growth(
    policies: Sequence[str],
    workers: Sequence[int],
    batches: Sequence[int],
    fields: int,
    keys: int,
    cache_rows: int,
    threads_to_try: Sequence[int] = (1,),
) -> Iterator[GrowthResult]:
    """Every policy with every number of workers, size of batch and number of threads, one after the other."""
    for policy, number in product(policies, threads_to_try):
        use_threads(number)
        warm_up(policy, SEED)
        for count, batch in product(workers, batches):
            yield time_growth(policy, count, batch, fields, keys, cache_rows)


def time_growth(policy: str, workers: int, batch: int, fields: int, keys: int, cache_rows: int) -> GrowthResult:
    spec = parse_spec(policy)
    index = TimedIndex()
    directory = Directory(
        np.full(workers, cache_rows, np.int64), "emark", SHARDS, spec.needs.synchronisation, write_behind=WRITE_BEHIND
    )
    cache_bytes = directory.nbytes
    decider = Decider(index, directory, spec.build(SEED, "cpu"), spec.needs, np.ones(workers))
    ahead, decide = [], []
    for step, keys_BF in enumerate(growing_keys(batch, fields, keys), start=1):
        began = TwoClocks.now()
        numbered_keys = number_keys(keys_BF)
        numbered = TwoClocks.now()
        try:
            decider.decide(step, numbered_keys)
        except CacheTooSmall as error:
            raise cache_too_small(policy, workers, error) from error
        ahead.append(numbered.since(began))
        decide.append(TwoClocks.now().since(numbered))
    return GrowthResult(
        policy=policy,
        threads=threads(),
        workers=workers,
        batch=batch,
        keys=index.known,
        steps=len(decide),
        bytes_per_key=(index.nbytes + directory.nbytes - cache_bytes) / index.known,
        ahead=_pauses(ahead),
        look_up=_pauses(index.times),
        decide=_pauses(decide),
    )


def growing_keys(batch: int, fields: int, keys: int) -> Iterator[NDArray[np.uint64]]:
    """Batches until there have been so many keys."""
    draw = np.random.default_rng(SEED)
    new_fields = min(NEW_FIELDS, fields)
    new = batch * new_fields
    pool = draw.integers(2**64 - 1, size=keys + new, dtype=np.uint64)
    for known in range(0, keys, new):
        new_BF = pool[known : known + new].reshape(batch, new_fields)
        known_BF = pool[draw.zipf(SKEW, (batch, fields - new_fields)) % max(known, new)]
        yield np.concatenate((new_BF, known_BF), axis=1)


def growth_table(result: GrowthResult) -> Table:
    """A result, a line for each part."""
    table = Table(
        title=f"{result.policy}, {result.workers} workers, {result.threads} threads, {result.batch:,} samples a step, "
        f"{result.keys:,} keys: ms a step",
        box=None,
    )
    for name in ("part", "median", "99.9 %", "worst", "CPU median", "CPU 99.9 %", "CPU worst"):
        table.add_column(name, justify="left" if name == "part" else "right")
    for part, pauses in (("ahead", result.ahead), ("look-up", result.look_up), ("decide", result.decide)):
        table.add_row(part, *(f"{ms:.2f}" for ms in msgspec.structs.astuple(pauses)))
    return table


class TwoClocks(NamedTuple):
    """What the clock and the processor's clock of this thread say, in seconds."""

    clock: float
    cpu: float

    @classmethod
    def now(cls) -> "TwoClocks":
        return cls(time.perf_counter(), time.thread_time())

    def since(self, earlier: "TwoClocks") -> "TwoClocks":
        """The seconds in between."""
        return TwoClocks(self.clock - earlier.clock, self.cpu - earlier.cpu)


class TimedIndex(Index):
    """An index that remembers how long each batch took."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[TwoClocks] = []

    def resolve(self, keys: BatchKeys) -> BatchRows:
        began = TwoClocks.now()
        rows = super().resolve(keys)
        self.times.append(TwoClocks.now().since(began))
        return rows


def _pauses(times: Sequence[TwoClocks]) -> Pauses:
    clock, cpu = 1000 * np.array(times[WARM_UP_STEPS:] or times).T
    return Pauses(
        median=float(np.median(clock)),
        rare=float(np.quantile(clock, RARE)),
        worst=float(clock.max()),
        cpu_median=float(np.median(cpu)),
        cpu_rare=float(np.quantile(cpu, RARE)),
        cpu_worst=float(cpu.max()),
    )
