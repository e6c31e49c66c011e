"""Results of real runs as a table for people."""

from collections.abc import Sequence
from statistics import median

from rich import box
from rich.table import Table

from benchmarks.change import FIRST_STEPS, ChangePhase
from benchmarks.prune import PruneResult
from benchmarks.regret import RegretCandidate, RegretResult, StaySummary, ratios_of
from benchmarks.train import Experiment, TrainResult


def train_table(results: Sequence[TrainResult], experiment: Experiment) -> Table:
    """Policies as columns: rates first, then where rows and seconds went."""
    links = ",".join(map(str, experiment.links))
    table = Table(
        title=f"{results[0].steps} steps after {experiment.warm_up}, {experiment.workers} workers × "
        f"{experiment.batch} samples, links {links} Gbit/s ({experiment.network})",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("", no_wrap=True)
    for result in results:
        table.add_column(result.policy, justify="right", overflow="fold")
    for line in zip(*(_train_column(result) for result in results), strict=True):
        table.add_row(line[0][0], *(text for _, text in line))
    return table


def _train_column(result: TrainResult) -> list[tuple[str, str]]:
    """Name and text of every line."""
    seconds = result.slowest_seconds
    return [
        ("steps/s", f"{result.steps_per_second:.2f}"),
        ("  of every repeat", " ".join(f"{rate:.2f}" for rate in result.repeats)),
        ("against the first", f"{result.speed_up:.2f}×"),
        ("samples/s", f"{result.samples_per_second:,.0f}"),
        ("loss", f"{result.logloss:.6f}"),
        ("rows pulled", f"{sum(result.miss_pull):,}"),
        ("rows pushed, update", f"{sum(result.update_push):,}"),
        ("rows pushed, evict", f"{sum(result.evict_push):,}"),
        ("megabytes moved", f"{sum(result.moved_bytes) / 1e6:,.1f}"),
        ("  of the dense part", f"{sum(result.dense_bytes) / 1e6:,.1f}"),
        ("  of rows in a ring", f"{sum(result.reduced_bytes) / 1e6:,.1f}"),
        ("megabytes of orders", f"{sum(result.order_bytes) / 1e6:,.1f}"),
        ("  of reports", f"{sum(result.report_bytes) / 1e6:,.1f}"),
        ("samples by worker", "/".join(f"{samples / sum(result.samples):.0%}" for samples in result.samples)),
        ("slowest worker", result.slowest),
        ("  push, ms a step", f"{1000 * seconds.push:.1f}"),
        ("  pull", f"{1000 * seconds.pull:.1f}"),
        ("  compute", f"{1000 * seconds.compute:.1f}"),
        ("  wait", f"{1000 * seconds.wait:.1f}"),
        ("decides in, ms p50/p99", f"{result.decide_ms.p50:.1f}/{result.decide_ms.p99:.1f}"),
    ]


def regret_table(result: RegretResult, experiment: Experiment) -> Table:
    """The own choice and every fixed candidate, and how the own choice compares with each."""
    links = ",".join(map(str, experiment.links))
    table = Table(
        title=f"{experiment.steps} steps, settled after {experiment.warm_up}, {experiment.workers} workers × "
        f"{experiment.batch} samples, links {links} Gbit/s ({experiment.network})",
        caption=_regret_lines(result, experiment),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("", no_wrap=True)
    for name in ("steps/s, whole run", "own over it", "steps/s, settled", "own over it", "loss"):
        table.add_column(name, justify="right")
    for candidate in (result.own, *result.fixed):
        table.add_row(*_regret_line(candidate, result))
    return table


def _regret_line(candidate: RegretCandidate, result: RegretResult) -> list[str]:
    own = result.own
    is_own = candidate is result.own
    return [
        f"{candidate.policy}{' (own)' if is_own else ''}",
        f"{candidate.whole.median:.2f}",
        "" if is_own else f"{median(ratios_of(own.whole, candidate.whole)):.2f}×",
        f"{candidate.settled.median:.2f}",
        "" if is_own else f"{median(ratios_of(own.settled, candidate.settled)):.2f}×",
        f"{candidate.losses[0]:.6f}",
    ]


def _stay_text(stay: StaySummary) -> str:
    took = "" if stay.ms is None else f", {stay.ms:.0f} ms a step"
    return f"{len(stay.members)} from step {stay.step}{took}"


def _regret_lines(result: RegretResult, experiment: Experiment) -> str:
    lines = [
        f"{result.own.policy} has {result.whole.ratio:.2f} of the best fixed set in the whole run "
        f"({result.whole.best}) and {result.settled.ratio:.2f} once settled ({result.settled.best})"
    ]
    for number, run in enumerate(result.own_runs, 1):
        lines.append(
            f"repeat {number}: in the end {len(run.taking_part)} of {experiment.workers} took part "
            f"({', '.join(run.taking_part)}); sets: {', '.join(map(_stay_text, run.stays)) or 'all from the start'}"
        )
    return "\n".join(lines)


def change_table(phases: Sequence[ChangePhase], experiment: Experiment) -> Table:
    """One row for each change: how soon the choice followed, and what steps took."""
    links = ",".join(map(str, experiment.links))
    table = Table(
        title=f"{experiment.workers} workers × {experiment.batch} samples, links {links} Gbit/s at first (namespaces)",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("after")
    for name in ("step", "ms before", f"first {FIRST_STEPS}, mean", "settled"):
        table.add_column(name, justify="right")
    table.add_column("settled set")
    for name in ("followed after", "sets tried"):
        table.add_column(name, justify="right")
    for phase in phases:
        before = "" if phase.before_ms is None else f"{phase.before_ms:.0f}"
        took = before, f"{phase.first_ms:.0f}", f"{phase.settled_ms:.0f}"
        settled = ", ".join(phase.settled) or "all"
        table.add_row(
            phase.after, str(phase.step), *took, settled, f"{phase.followed_after} steps", str(len(phase.sets))
        )
    return table


def prune_table(results: Sequence[PruneResult]) -> Table:
    """One row for each run: what was kept, what it took, and how good predictions were."""
    first = results[0]
    table = Table(
        title=f"{first.file}, {first.keys:,} keys, {first.workers} × {first.batch} samples a step",
        caption="MB of rows on the shards, of the shards above idle ones, and pulled and pushed; loss2: second half",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for name in ("row", "kept", "live", "rows", "shards", "moved", "loss", "AUC", "loss2", "per s"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        table.add_row(*_prune_line(result))
    for result in results:
        if result.refused:
            table.caption = f"{table.caption}\n{result.name}: {result.refused}"
    return table


def _prune_line(result: PruneResult) -> list[str]:
    narrow = f"·{result.columns:g}" if result.columns < 1.0 else ""
    which = [f"{result.dim}{narrow}/{result.chunks}" if result.chunks else f"{result.dim}", f"{result.keep:.2g}"]
    if result.refused:
        return [*which, "refused"]
    sizes = result.counted_bytes, result.rows_bytes, result.pulled_bytes + result.pushed_bytes
    return [
        *which,
        f"{result.live_share:.1%}",
        *(f"{nbytes / 1e6:,.1f}" for nbytes in sizes),
        _figure(result.overall.logloss),
        _figure(result.overall.auc),
        _figure(result.second_half.logloss),
        f"{result.samples_per_second:,.0f}",
    ]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
