"""The sensitivity study of the ESD paper (§6.5): one thing varied at a time, the rest at the paper's defaults."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.simulated.dispatch import DispatchResult, run_dispatch
from benchmarks.simulated.workload import make_workload
from infra.errors import ConfigError

LINKS = (5.0, 5.0, 5.0, 5.0, 0.5, 0.5, 0.5, 0.5)
BATCH = 128
CACHE_RATIO = 0.08
BATCHES = (64, 128, 256, 512)
CACHE_RATIOS = (0.04, 0.06, 0.08, 0.10)
FOUR_WORKERS = (5.0, 5.0, 0.5, 0.5)
EQUAL_LINKS = (5.0,) * 8


class Setting(msgspec.Struct, frozen=True):
    """One line of a table."""

    varied: str
    value: str
    workers: int
    batch: int
    cache_ratio: float
    links_gbit: tuple[float, ...]
    results: list[DispatchResult] = []
    """empty where the caches cannot hold a micro-batch, or the file is too short"""
    why_not: str = ""


def settings() -> Iterator[Setting]:
    """Every line of every table, still without results."""
    for batch in BATCHES:
        yield Setting("batch per worker", str(batch), len(LINKS), batch, CACHE_RATIO, LINKS)
    for ratio in CACHE_RATIOS:
        yield Setting("cache ratio", f"{ratio:.0%}", len(LINKS), BATCH, ratio, LINKS)
    yield Setting("workers", "4", len(FOUR_WORKERS), BATCH, CACHE_RATIO, FOUR_WORKERS)
    yield Setting("workers", "8", len(LINKS), BATCH, CACHE_RATIO, LINKS)
    yield Setting("links, Gbit/s", "all 5", len(EQUAL_LINKS), BATCH, CACHE_RATIO, EQUAL_LINKS)
    yield Setting("links, Gbit/s", "5 and 0.5", len(LINKS), BATCH, CACHE_RATIO, LINKS)


def run_paper(keys_KF: NDArray[np.uint64], specs: Sequence[str]) -> list[Setting]:
    """Measures every line; the paper's defaults, which stand in every table, are measured once."""
    known: dict[tuple[int, float, tuple[float, ...]], Setting] = {}
    done = []
    for setting in settings():
        place = (setting.batch, setting.cache_ratio, setting.links_gbit)
        if place not in known:
            known[place] = _measure(keys_KF, setting, specs)
        measured = known[place]
        done.append(msgspec.structs.replace(setting, results=measured.results, why_not=measured.why_not))
    if not any(setting.results for setting in done):
        raise ConfigError(f"none of the paper's settings can be measured; the first one: {done[0].why_not}")
    return done


def _measure(keys_KF: NDArray[np.uint64], setting: Setting, specs: Sequence[str]) -> Setting:
    try:
        workload = make_workload(keys_KF, setting.links_gbit, setting.batch, setting.cache_ratio)
        return msgspec.structs.replace(setting, results=run_dispatch(workload, specs))
    except ConfigError as error:
        return msgspec.structs.replace(setting, why_not=str(error))
