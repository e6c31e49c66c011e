"""Studies of the papers: one thing varied at a time, the rest at the paper's defaults.

The sensitivity study of the ESD paper (§6.5, figures 7 to 10), and Herald's breakdown of what the assignment and
synchronisation on demand contribute (table 2).
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.simulated.dispatch import DispatchResult, run_dispatch
from benchmarks.simulated.sizes import Architecture
from benchmarks.simulated.workload import make_workload
from infra.base.errors import ConfigError

LINKS = (5.0, 5.0, 5.0, 5.0, 0.5, 0.5, 0.5, 0.5)
BATCH = 128
CACHE_RATIO = 0.08
DIM = 512
BATCHES = (64, 128, 256, 512)
CACHE_RATIOS = (0.04, 0.06, 0.08, 0.10)
DIMS = (128, 256, 512, 1024)
FOUR_LINKS = (5.0, 5.0, 0.5, 0.5)
FOUR_EQUAL_LINKS = (5.0,) * 4
EQUAL_LINKS = (5.0,) * 8

EMBEDDING_SIZE = "embedding size"
BREAKDOWN = "breakdown"
HERALD_POLICIES = ("random:full", "laia:full", "random", "laia")
"""Vanilla; laia alone; synchronisation on demand (their communication plan) alone; both, which is Herald."""
HERALD_LINKS = (100.0,) * 8
HERALD_CACHE_RATIO = 0.10


class Setting(msgspec.Struct, frozen=True):
    """One line of a table; for the breakdown, all of it."""

    varied: str
    value: str
    policies: tuple[str, ...]
    """Policies; the others are compared with the first."""
    batch: int = BATCH
    """Samples per worker."""
    cache_ratio: float = CACHE_RATIO
    links_gbit: tuple[float, ...] = LINKS
    dim: int = DIM
    eviction: str = "emark"
    results: tuple[DispatchResult, ...] = ()
    """Results; empty if the caches cannot hold a micro-batch, or the file is too short."""
    why_not: str = ""


def settings(policies: Sequence[str]) -> Iterator[Setting]:
    """Every line of every table, still without results."""
    chosen = tuple(policies)
    for batch in BATCHES:
        yield Setting("batch per worker", str(batch), chosen, batch=batch)
    for ratio in CACHE_RATIOS:
        yield Setting("cache ratio", f"{ratio:.0%}", chosen, cache_ratio=ratio)
    for dim in DIMS:
        yield Setting(EMBEDDING_SIZE, f"{dim:,}", chosen, dim=dim)
    for links in (FOUR_LINKS, FOUR_EQUAL_LINKS, LINKS, EQUAL_LINKS):
        speeds = "all 5" if min(links) == max(links) else "half 5, half 0.5"
        yield Setting("workers and links, Gbit/s", f"{len(links)}, {speeds}", chosen, links_gbit=links)
    yield Setting(
        *(BREAKDOWN, "Herald's table 2", HERALD_POLICIES),
        cache_ratio=HERALD_CACHE_RATIO,
        links_gbit=HERALD_LINKS,
        eviction="lru",
    )


def run_paper(keys_KF: NDArray[np.uint64], policies: Sequence[str], architecture: Architecture) -> list[Setting]:
    """Measures every line; the paper's defaults, which occur in every table of ESD's, are measured once."""
    known: dict[Setting, Setting] = {}
    done = []
    for setting in settings(policies):
        place = msgspec.structs.replace(setting, varied="", value="")
        if place not in known:
            known[place] = _measure(keys_KF, setting, architecture)
        measured = known[place]
        done.append(msgspec.structs.replace(setting, results=measured.results, why_not=measured.why_not))
    if not any(setting.results for setting in done):
        raise ConfigError(f"none of the paper's settings can be measured; the first one: {done[0].why_not}")
    return done


def _measure(keys_KF: NDArray[np.uint64], setting: Setting, architecture: Architecture) -> Setting:
    sizes = architecture.sizes(setting.dim)
    try:
        workload = make_workload(
            keys_KF, setting.links_gbit, setting.batch, setting.cache_ratio, setting.eviction, sizes=sizes
        )
        return msgspec.structs.replace(setting, results=tuple(run_dispatch(workload, setting.policies)))
    except ConfigError as error:
        return msgspec.structs.replace(setting, why_not=str(error))
