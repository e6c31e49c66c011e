"""How long decisions take, by part: key lookup, policy and plan, without workers and without a network.

The clock is outside the decision: the time of a decision is what its caller waits for. What another thread does of it
(making keys distinct before, concluding afterwards) is not in it, and the first of these is measured separately.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from benchmarks.clicks import made_up_samples, read_samples
from dispatch.placement.capacity.room import hot_rows
from dispatch.placement.decide import Decider, warm_up
from dispatch.placement.errors import CacheTooSmall
from dispatch.placement.policies.registry import parse_spec
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import Index
from infra.base.distinct import number_keys
from infra.base.errors import ConfigError
from infra.base.kernels import threads, use_threads
from ingest.schema import Schema

SEED = 1
SHARDS = 2
WRITE_BEHIND = 0.5
"""Rows written behind, as a share of those pulled: the default of a run, in every step."""


@dataclass(frozen=True)
class DecideResult:
    """Medians over the second half of the steps, in milliseconds."""

    policy: str
    threads: int
    """Among which decisions were divided."""
    workers: int
    batch: int
    """Samples of a step."""
    distinct: int
    """Distinct keys of a step."""
    ahead: float
    """Making keys distinct, in a thread of the loader."""
    decide: float
    look_up: float
    """Of it: from keys to rows."""
    assign: float
    """Of it: the policy."""
    plan: float
    """Of it: what moves."""
    longest: float
    """The longest decision, without the first three."""


def run_decide(
    policies: Sequence[str],
    workers: Sequence[int],
    batches: Sequence[int],
    schema: Schema,
    dataset: str,
    steps: int,
    cache_rows: int,
    file: Path | None = None,
    threads_to_try: Sequence[int] = (1,),
) -> Iterator[DecideResult]:
    """Every policy with every number of workers, size of batch and number of threads, one after the other."""
    keys_KF = read_keys(schema, dataset, file, max(batches) * steps)
    for policy, number in product(policies, threads_to_try):
        use_threads(number)
        warm_up(policy, SEED)
        for count, batch in product(workers, batches):
            yield time_decisions(policy, count, batch, keys_KF[: batch * steps], cache_rows)


def read_keys(schema: Schema, dataset: str, file: Path | None, wanted: int) -> NDArray[np.uint64]:
    """The keys of so many samples of a file, or of made-up ones."""
    parts = made_up_samples(schema, wanted) if file is None else read_samples(dataset, file, schema)
    taken: list[NDArray[np.uint64]] = []
    for samples in parts:
        taken.append(samples.keys_BF)
        if sum(map(len, taken)) >= wanted:
            return np.concatenate(taken)[:wanted]
    raise ConfigError(
        f"{file} has {sum(map(len, taken)):,} samples; expected {wanted:,}, the largest batch in every step; lower "
        "--batch or --steps"
    )


def decide_table(results: Sequence[DecideResult]) -> Table:
    """The results, a line each."""
    table = Table(title="ms of a decision: of it look-up, policy and plan; ahead of it, distinct keys", box=None)
    for name in (
        "policy",
        "threads",
        "workers",
        "samples",
        "keys",
        "ahead",
        "decide",
        "look-up",
        "policy",
        "plan",
        "worst",
    ):
        table.add_column(name, justify="right" if table.columns else "left")
    for each in results:
        times = (each.ahead, each.decide, each.look_up, each.assign, each.plan, each.longest)
        counts = (each.threads, each.workers, each.batch, each.distinct)
        table.add_row(each.policy, *(f"{count:,}" for count in counts), *(f"{ms:.2f}" for ms in times))
    return table


def time_decisions(policy: str, workers: int, batch: int, keys_KF: NDArray[np.uint64], cache_rows: int) -> DecideResult:
    spec = parse_spec(policy)
    hot = hot_rows(spec.needs.hot_share, cache_rows)
    caches = np.full(workers, cache_rows, np.int64)
    directory = Directory(caches, "emark", SHARDS, spec.needs.synchronisation, hot, write_behind=WRITE_BEHIND)
    decider = Decider(Index(), directory, spec.build(SEED, "cpu"), spec.needs, np.ones(workers))
    times = []
    distinct = 0
    for step in range(1, len(keys_KF) // batch + 1):
        began = time.perf_counter()
        keys = number_keys(keys_KF[(step - 1) * batch : step * batch])
        numbered = time.perf_counter()
        try:
            decision = decider.decide(step, keys)
        except CacheTooSmall as error:
            raise cache_too_small(policy, workers, error) from error
        ended = time.perf_counter()
        distinct = keys.keys_U.size
        parts = decision.parts
        times.append((numbered - began, ended - numbered, parts.look_up, parts.assign, parts.plan))
    ahead, decide, look_up, assign, plan = (
        1000 * median(column) for column in zip(*times[len(times) // 2 :], strict=True)
    )
    return DecideResult(
        policy=policy,
        threads=threads(),
        workers=workers,
        batch=batch,
        distinct=distinct,
        ahead=ahead,
        decide=decide,
        look_up=look_up,
        assign=assign,
        plan=plan,
        longest=1000 * max(each[1] for each in times[3:]),
    )


def cache_too_small(policy: str, workers: int, error: CacheTooSmall) -> ConfigError:
    """The same error, for a person who started a benchmark."""
    return ConfigError(f"decisions of {policy} for {workers} workers cannot be timed; {error}, here with --cache-rows")
