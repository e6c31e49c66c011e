"""Results of simulations as tables for people; savings are against the first policy."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from benchmarks.simulated.dispatch import DispatchResult, saving, speed_up
from benchmarks.simulated.paper import Setting
from benchmarks.simulated.workload import Workload

COLUMNS = ("policy", "cost", "saved", "pulls", "update", "evict", "reduce", "hits", "links", "faster", "p50/p99")


def dispatch_table(results: Sequence[DispatchResult], workload: Workload) -> Table:
    """One line a policy: cost and its parts, hit ratio, time of the slowest link, time to decide."""
    links = ",".join(f"{link:g}" for link in workload.links_gbit)
    table = Table(
        title=f"{results[0].steps} steps, {workload.workers} workers × {workload.batch} samples, links {links},\n"
        f"caches of {workload.cache_rows:,} rows ({workload.eviction});\n"
        "costs in 1,000 rows with their state over the fastest link",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for result in results:
        table.add_row(*_line(result, results[0], workload))
    return table


def _line(result: DispatchResult, first: DispatchResult, workload: Workload) -> list[str]:
    kinds = (result.miss_pull, result.update_push, result.evict_push, result.all_reduce)
    costs = [float(workload.row_cost_n @ kind) for kind in kinds]
    return [
        result.policy,
        _thousands(result.cost),
        f"{saving(result, first):.1%}",
        *map(_thousands, costs),
        f"{result.hit_ratio:.1%}",
        _thousands(result.link_time),
        f"{speed_up(result, first):.2f}×",
        f"{result.decide_ms.p50:.1f}/{result.decide_ms.p99:.0f}",
    ]


def _thousands(cost: float) -> str:
    return f"{cost / 1000:,.0f}" if cost >= 10_000 else f"{cost / 1000:.2f}"


def paper_tables(settings: Sequence[Setting], specs: Sequence[str]) -> list[Table]:
    """One table for each thing varied: the cost saved and, in brackets, how many times faster the slowest link is."""
    tables = []
    for varied in dict.fromkeys(setting.varied for setting in settings):
        title = f"{varied}: cost saved against {specs[0]} (times faster over the slowest link)"
        table = Table(title=title, box=box.SIMPLE_HEAD)
        table.add_column("")
        table.add_column(f"{specs[0]}, cost", justify="right")
        for spec in specs[1:]:
            table.add_column(spec, justify="right")
        for setting in settings:
            if setting.varied == varied:
                table.add_row(setting.value, *_cells(setting, len(specs)))
        tables.append(table)
    return tables


def _cells(setting: Setting, columns: int) -> list[str]:
    if not setting.results:
        reason = "cache too small" if "caches of" in setting.why_not else "file too short"
        return [reason, *["–"] * (columns - 1)]
    first, *others = setting.results
    return [f"{first.cost:,.0f}", *(f"{saving(other, first):.1%} ({speed_up(other, first):.2f}×)" for other in others)]
