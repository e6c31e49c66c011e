"""Results of real runs as a table for people."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from benchmarks.train import Experiment, TrainResult


def train_table(results: Sequence[TrainResult], experiment: Experiment) -> Table:
    """Policies as columns: rates first, then where rows and seconds went."""
    links = ",".join(f"{link:g}" for link in experiment.links_gbit)
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
