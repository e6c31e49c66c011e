"""One decision: from a batch's keys to a plan for every worker and shard.

The same code decides in a live run, in the simulator and in tests. It is a pure function of the sequence of batches,
the policy and the members, so a replay of the manifests repeats every decision.

Legend: B samples, n workers.
"""

from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dispatch.backend import OptBackend
from dispatch.directory import Directory
from dispatch.errors import CacheTooSmall
from dispatch.index import BatchRows, Index
from dispatch.plan import RoundPlan
from dispatch.policies.registry import build_policy
from dispatch.policies.spec import parse_spec
from dispatch.situation import Policy, Situation
from infra.errors import ConfigError


@dataclass(frozen=True)
class Decision:
    """What one step trains where."""

    rows: BatchRows
    assignment_B: NDArray[np.int32]
    plan: RoundPlan
    seconds: float
    """how long it took to decide"""


class Decider:
    """Decides step after step for one generation's members."""

    def __init__(self, index: Index, directory: Directory, policy: Policy, row_cost_n: NDArray[np.float64]) -> None:
        self._index = index
        self._directory = directory
        self._policy = policy
        self._row_cost_n = row_cost_n

    def decide(self, step: int, keys_BF: NDArray[np.uint64]) -> Decision:
        began = perf_counter()
        rows = self._index.resolve(keys_BF)
        state_U, holders_UQ = self._directory.look(rows)
        capacity_n = equal_capacities(keys_BF.shape[0], self._directory.workers)
        situation = Situation(step, rows.local_BF, state_U, holders_UQ, self._row_cost_n, capacity_n)
        assignment_B = self._policy.assign(situation)
        plan = self._directory.plan(step, rows, assignment_B)
        return Decision(rows, assignment_B, plan, perf_counter() - began)

    def flush(self) -> RoundPlan:
        return self._directory.flush()


def warm_up(policy: str, seed: int, opt_backend: OptBackend = "cpu") -> None:
    """Makes a few decisions on made-up keys, so that the first real ones do not wait for kernels to be compiled."""
    directory = Directory(np.full(2, 16, np.int64), "lru", 2, parse_spec(policy).synchronisation)
    decider = Decider(Index(), directory, build_policy(policy, seed, opt_backend), np.array([1.0, 2.0]))
    for step in range(1, 5):
        decider.decide(step, np.arange(step, step + 16, dtype=np.uint64).reshape(8, 2))
    decider.flush()


def equal_capacities(samples: int, workers: int) -> NDArray[np.int64]:
    """The smallest equal capacity that holds the batch."""
    return np.full(workers, -(-samples // workers), np.int64)


def relative_row_costs(links_gbit: list[float]) -> NDArray[np.float64]:
    """Cost of a row over each link in units of the fastest; a link of 0 is not known and counts as the fastest."""
    for link in links_gbit:
        if not np.isfinite(link) or link < 0:
            raise ConfigError(f"link of {link} Gbit/s: expected a positive number, or 0 if it is not known")
    fastest = max(links_gbit, default=0.0) or 1.0
    return np.array([fastest / (link or fastest) for link in links_gbit])


def needed_rows(batch: int, workers: int, fields: int) -> int:
    """Rows that a micro-batch may use at most."""
    return int(equal_capacities(batch, workers)[0]) * fields


def check_cache(cache_rows: int, batch: int, workers: int, fields: int) -> None:
    """Refuses a cache that could fail to hold a micro-batch, before anything starts."""
    needed = needed_rows(batch, workers, fields)
    if cache_rows < needed:
        raise CacheTooSmall(
            f"a cache of {cache_rows} rows cannot hold a micro-batch: {batch} samples over {workers} workers with "
            f"{fields} keys each may use {needed} rows; raise dispatch.cache_rows or lower stream.batch"
        )
