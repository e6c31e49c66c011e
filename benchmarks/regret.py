"""What the automatic choice costs, or saves: an elastic policy against every fixed set of workers a user could pick.

The fixed candidates are one worker alone, the 2, 4, … fastest, and all of them; the fastest are those with the fastest
links. One worker needs no policy, so it has the one that decides soonest; several have esd:1, through the hub and, if
that is asked for, in a ring. Other candidates can be named instead. All candidates and the own choice run in turn over
the same events, and all of that is repeated.

Regret is the rate of the own choice divided by that of the best fixed candidate, the one with the highest median: with
1 or more nobody could have picked a better set. It is computed for the whole run, from the beginning of the first step
to the end of the last, and for the settled part, after the warm-up.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.train import Experiment, MeasuredRun, Runs, Variant, loss_of, parse_variants, run_in_turn, settled_rate
from dispatch.journal.history import JOURNAL
from dispatch.journal.log import read_whole
from dispatch.journal.records import AnyRecord, SetChosen, StepDone, StepFigures
from dispatch.placement.policies.registry import parse_spec
from dispatch.progress.status import Summary
from infra.base.errors import ConfigError
from infra.base.process import Stop
from infra.run.display import Display

ALONE = "round_robin"
"""Policy of a single worker: the one that does least."""
SEVERAL = "esd:1"


class Rates(msgspec.Struct, frozen=True):
    """Steps per second."""

    median: float
    repeats: list[float]


class RegretCandidate(msgspec.Struct, frozen=True):
    """One policy on one set of workers, or the own choice among all."""

    policy: str
    workers: int
    """Workers that it was started with."""
    whole: Rates
    """Rates from the beginning of the first step to the end of the last."""
    settled: Rates
    """Rates after the warm-up."""
    losses: list[float]
    """Losses of every repeat."""


class OwnRun(msgspec.Struct, frozen=True):
    """What the own choice did in one run."""

    taking_part: list[str]
    """Workers that were not parked at the end."""
    stays: list["StaySummary"]
    """Every set that it chose, in order, as far back as its journal reaches."""


class StaySummary(msgspec.Struct, frozen=True):
    """A chosen set of workers, and its steps until the next one was chosen."""

    step: int
    """First step."""
    members: list[str]
    reason: str
    steps: int
    """Number of its steps that were measured."""
    expected_ms: float | None
    """Expected time of a step; None: no times were known."""
    ms: float | None
    """Median of its steps; None: none was measured."""
    decide_ms: float | None
    step_ms: list[float]
    """Time of every measured step."""


class Regret(msgspec.Struct, frozen=True):
    """The own choice relative to the best fixed candidate."""

    best: str
    """The fixed candidate with the highest median."""
    ratio: float
    """The median of the ratios within a repeat."""
    repeats: list[float]


class RegretResult(msgspec.Struct, frozen=True):
    """An own choice, and what it is compared with."""

    own: RegretCandidate
    fixed: list[RegretCandidate]
    whole: Regret
    settled: Regret
    own_runs: list[OwnRun]
    """Runs of the own choice, one per repeat."""


def run_regret(
    folder: Path, experiment: Experiment, variants: Sequence[Variant], repeat: int, stop: Stop, display: Display
) -> RegretResult:
    """variants: the own choice, and then the fixed candidates."""
    runs = run_in_turn(folder, fastest_first(experiment), variants, repeat, stop, display)
    own, *fixed = [_candidate(variant, experiment, runs) for variant in variants]
    return RegretResult(
        own=own,
        fixed=fixed,
        whole=regret_of(own.policy, own.whole, {each.policy: each.whole for each in fixed}),
        settled=regret_of(own.policy, own.settled, {each.policy: each.settled for each in fixed}),
        own_runs=[own_run(run) for run in runs[own.policy]],
    )


def fastest_first(experiment: Experiment) -> Experiment:
    """The same with its workers sorted by their links, so that the first k are the k fastest."""
    return experiment.with_links(sorted(experiment.links, key=lambda link: link.slower, reverse=True))


def regret_variants(policies: str, workers: int, rings: bool) -> list[Variant]:
    """The own choice, and then the fixed candidates: those that are named after it, or every set of so many workers."""
    own, *named = parse_variants(policies)
    if not is_own_choice(own) or any(is_own_choice(each) for each in named):
        raise ConfigError(
            f"--regret with --policies {policies!r} has no own choice, or several; expected one policy that ends in "
            ":elastic and has no number of workers, as joint:elastic, and after it fixed ones or none; correct "
            "--policies"
        )
    return [own, *(named or parse_variants(",".join(_fixed(workers, rings))))]


def is_own_choice(variant: Variant) -> bool:
    """Whether it chooses for itself which of all workers take part."""
    return parse_spec(variant.policy).needs.elastic and variant.workers is None


def set_sizes(workers: int) -> list[int]:
    """1, 2, 4, … and all."""
    doubled = [1 << power for power in range(workers.bit_length())]
    return sorted({*(size for size in doubled if size <= workers), workers})


def _fixed(workers: int, rings: bool) -> Iterator[str]:
    for size in set_sizes(workers):
        if size == 1:
            yield f"{ALONE}@1"
            continue
        yield f"{SEVERAL}@hub@{size}"
        if rings:
            yield f"{SEVERAL}@ring@{size}"


def _candidate(variant: Variant, experiment: Experiment, runs: Runs) -> RegretCandidate:
    summaries = [run.summary for run in runs[variant.text]]
    return RegretCandidate(
        policy=variant.text,
        workers=variant.workers or experiment.workers,
        whole=_rates([whole_rate(summary) for summary in summaries]),
        settled=_rates([settled_rate(summary) for summary in summaries]),
        losses=[loss_of(summary) for summary in summaries],
    )


def _rates(repeats: list[float]) -> Rates:
    return Rates(median(repeats), repeats)


def whole_rate(run: Summary) -> float:
    """Steps per second of all steps, without the start of processes."""
    return run.status.steps / run.status.seconds


def regret_of(own: str, rates: Rates, fixed: dict[str, Rates]) -> Regret:
    """Compares with the fixed candidate that has the highest median, repeat by repeat."""
    assert fixed, f"{own} has nothing to be compared with"
    best = max(fixed, key=lambda policy: fixed[policy].median)
    ratios = ratios_of(rates, fixed[best])
    return Regret(best, median(ratios), ratios)


def ratios_of(own: Rates, other: Rates) -> list[float]:
    """Ratios repeat by repeat: what slowed a whole repeat down cancels out."""
    return [mine / theirs for mine, theirs in zip(own.repeats, other.repeats, strict=True)]


def own_run(run: MeasuredRun) -> OwnRun:
    """Who took part at the end, and which sets there were, according to the run's journal."""
    return OwnRun(
        taking_part=[worker.name for worker in run.summary.status.workers if not worker.is_parked],
        stays=read_whole(run.folder / JOURNAL, stays_of),
    )


def stays_of(records: Iterable[AnyRecord]) -> list[StaySummary]:
    """The recorded sets, each with the steps that were trained before the next."""
    chosen: list[SetChosen] = []
    figures: dict[int, StepFigures] = {}
    for record in records:
        if isinstance(record, SetChosen):
            chosen.append(record)
        elif isinstance(record, StepDone) and record.figures is not None:
            figures[record.step] = record.figures
    ends = [*(each.step for each in chosen), max(figures, default=0) + 1][1:]
    return [
        _stay(each, [figures[k] for k in range(each.step, end) if k in figures])
        for each, end in zip(chosen, ends, strict=True)
    ]


def _stay(chosen: SetChosen, steps: list[StepFigures]) -> StaySummary:
    return StaySummary(
        step=chosen.step,
        members=list(chosen.members),
        reason=chosen.reason,
        steps=len(steps),
        expected_ms=None if chosen.expected_seconds is None else 1000 * chosen.expected_seconds,
        ms=1000 * median(step.seconds for step in steps) if steps else None,
        decide_ms=1000 * median(step.decide_seconds for step in steps) if steps else None,
        step_ms=[round(1000 * step.seconds, 3) for step in steps],
    )
