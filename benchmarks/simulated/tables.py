"""Results of simulations as tables for people; savings are against the first policy."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from benchmarks.simulated.dispatch import DispatchResult, saving, speed_up
from benchmarks.simulated.paper import Setting
from benchmarks.simulated.sizes import Sizes
from benchmarks.simulated.workload import Workload

KINDS = (
    ("miss_pull", "pulls"),
    ("update_push", "update"),
    ("evict_push", "evict"),
    ("all_reduce", "reduce"),
    ("dense", "dense"),
)
"""field of a result, and its column; a column in which nothing moved is left out"""


def dispatch_table(results: Sequence[DispatchResult], workload: Workload) -> Table:
    """One line a policy: cost and its parts, hit ratio, time of the slowest link, time to decide."""
    links = ",".join(f"{link:g}" for link in workload.links_gbit)
    table = Table(
        title=f"{results[0].steps} steps, {workload.workers} workers × {workload.batch} samples, links {links},\n"
        f"caches of {workload.cache_rows:,} rows ({workload.eviction}), {_dense_part(workload.sizes)};\n"
        "costs in 1,000 rows with their state over the fastest link",
        box=None,
        padding=(0, 1, 0, 0),
    )
    lines = [_line(result, results[0], workload) for result in results]
    for name in lines[0]:
        if name not in dict(KINDS).values() or any(line[name] != _thousands(0) for line in lines):
            is_text = name == "policy"
            table.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    shown = [str(column.header) for column in table.columns]
    for line in lines:
        table.add_row(*(line[name] for name in shown))
    return table


def _dense_part(sizes: Sizes) -> str:
    return f"dense part of {sizes.dense / 1e6:.3g} MB through a {sizes.reduce}" if sizes.dense else "no dense part"


def _line(result: DispatchResult, first: DispatchResult, workload: Workload) -> dict[str, str]:
    """Text by column."""
    costs = {name: float(workload.row_cost_n @ getattr(result, field)) for field, name in KINDS}
    return {
        "policy": result.policy,
        "cost": _thousands(result.cost),
        "saved": f"{saving(result, first):.1%}",
        **{name: _thousands(cost) for name, cost in costs.items()},
        "hits": f"{result.hit_ratio:.1%}",
        "links": _thousands(result.link_time),
        "faster": f"{speed_up(result, first):.2f}×",
        "p50/p99": f"{result.decide_ms.p50:.1f}/{result.decide_ms.p99:.0f}",
    }


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
