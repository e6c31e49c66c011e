"""Dedicated cores for the workers of a run, as they would have on separate machines.

Workers that share cores wait for each other, and a measurement of several of them says more about that than about the
chosen set. So each worker is pinned to some cores and has as many threads; the other processes of the run, dispatcher
and shards, are confined to the remaining cores, or may use all of them if none is left.
"""

import os
import shutil
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from infra.base.errors import ConfigError


class CoreShares(NamedTuple):
    """Which process may use which cores."""

    by_worker: tuple[tuple[int, ...], ...] = ()
    """Cores by worker; empty: workers run anywhere."""
    others: tuple[int, ...] = ()
    """Cores of all other processes; empty: they run anywhere."""


def share_out_cores(each: int, workers: int) -> CoreShares:
    """That many cores of this machine for each worker; 0: nobody is pinned. Raises ConfigError if there are too few."""
    if not each:
        return CoreShares()
    if sys.platform != "linux" or shutil.which("taskset") is None:
        raise ConfigError(
            f"workers cannot be pinned to {each} cores each: there is no taskset on {sys.platform}; expected Linux "
            "with util-linux; install it, or leave --pin out"
        )
    cores = sorted(os.sched_getaffinity(0))
    if each * workers > len(cores):
        raise ConfigError(
            f"{workers} workers cannot be pinned to {each} cores each: this process may use {len(cores)}; expected "
            f"at least {each * workers}; lower --pin or --workers"
        )
    by_worker = tuple(tuple(cores[number * each : (number + 1) * each]) for number in range(workers))
    return CoreShares(by_worker, tuple(cores[each * workers :]))


@contextmanager
def run_on(cores: Collection[int]) -> Iterator[None]:
    """Inside, this process and those it starts use only these cores; none: any."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
