"""When several workers pay, in real runs: a grid of link speeds and batch sizes, beside what a plan expects there.

At each place of the grid the own choice, one worker alone and fixed sets of several run in turn over the same events,
as in ``freshet bench train --regret``. The plan for the same place knows nothing of these runs: it simulates decisions
on the events and measures compute in this process.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.regret import SEVERAL, Regret, RegretCandidate, fastest_first, ratios_of, regret_variants, run_regret
from benchmarks.train import Experiment, Variant, check_variant, settings_of
from infra.base.errors import ConfigError
from infra.base.process import Stop
from infra.plan.compute import ComputeCurve
from infra.plan.plan import make_plan, mean_seconds, plan_job
from infra.plan.sample import file_batches, made_up_batches
from infra.run.display import Display

OWN_CHOICE = "joint:elastic"
PLANNED_BATCHES = 60
PLANNED_SECONDS = 5.0
"""Approximate time of a plan."""


@dataclass(frozen=True)
class Grid:
    """Factors of an experiment's links and of its batch; every link speed is combined with every batch."""

    speeds: tuple[float, ...]
    sizes: tuple[int, ...]

    def places(self, base: Experiment) -> Iterator[Experiment]:
        """The experiment of each place: by batch, and within a batch by link speed."""
        for size in self.sizes:
            for speed in self.speeds:
                links = tuple(speed * link for link in base.links_gbit)
                yield replace(base, batch=size * base.batch, links_gbit=links)


class GridPlace(msgspec.Struct, frozen=True):
    """What was measured at one place, once settled, and what a plan expects there."""

    links_gbit: list[float]
    """Links, the fastest first."""
    batch: int
    """Samples of a step."""
    own: RegretCandidate
    fixed: list[RegretCandidate]
    regret: Regret
    """The own choice over the best fixed candidate."""
    taking_part: list[int]
    """Number of workers that took part at the end of each run of the own choice."""
    several: str
    """The fastest fixed candidate of several workers."""
    gain: float
    """Its speed over that of one worker alone, as the median of the ratios within a repeat."""
    planned_gain: float
    """The same, of the fastest set of several workers, according to the plan."""


def checked_places(folder: Path, base: Experiment, grid: Grid) -> list[Experiment]:
    """The experiment of each place; raises ConfigError if one of its runs is not possible."""
    if base.workers < 2:
        raise ConfigError(f"one worker cannot be compared with several; got {base.workers}; raise --workers")
    places = list(grid.places(fastest_first(base)))
    for place, candidate in product(places, _candidates(base)):
        check_variant(folder, place, candidate)
    return places


def _candidates(base: Experiment) -> list[Variant]:
    return regret_variants(OWN_CHOICE, base.workers, rings=False)


def run_grid(
    folder: Path, places: Sequence[Experiment], repeat: int, stop: Stop, display: Display
) -> Iterator[GridPlace]:
    """Yields each place as soon as it is measured."""
    computed: dict[int, ComputeCurve] = {}
    """By samples of a step; links do not change it."""
    for number, place in enumerate(places):
        at = folder / str(number)
        planned, computed[place.whole_batch] = _planned(at, place, computed.get(place.whole_batch))
        result = run_regret(at, place, _candidates(place), repeat, stop, display)
        (alone,) = (each for each in result.fixed if each.workers == 1)
        several = max((each for each in result.fixed if each.workers > 1), key=lambda each: each.settled.median)
        yield GridPlace(
            links_gbit=list(place.links_gbit),
            batch=place.whole_batch,
            own=result.own,
            fixed=result.fixed,
            regret=result.settled,
            taking_part=[len(run.taking_part) for run in result.own_runs],
            several=several.policy,
            gain=median(ratios_of(several.settled, alone.settled)),
            planned_gain=planned,
        )


def _planned(folder: Path, place: Experiment, compute: ComputeCurve | None) -> tuple[float, ComputeCurve]:
    """Speed of the fastest set of several workers over one alone, and the times of compute that this is based on.

    compute: measured already
    """
    settings = settings_of(folder, place, SEVERAL, "plan")
    if place.file is None:
        batches = made_up_batches(settings, PLANNED_BATCHES)
    else:
        batches = file_batches(settings, place.file, place.dataset, PLANNED_BATCHES)
    job = plan_job(settings, batches, compute)
    loads = make_plan(job, place.links_gbit, SEVERAL, settings.dispatch.share_bounds, PLANNED_SECONDS).loads
    times = {workers: mean_seconds(load) for workers, load in loads.items()}
    return times[1] / min(seconds for workers, seconds in times.items() if workers > 1), job.compute
