"""Results of simulations as tables for people; savings are against the first policy."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from benchmarks.simulated.dispatch import DispatchResult, saving, speed_up
from benchmarks.simulated.paper import BREAKDOWN, EMBEDDING_SIZE, Setting
from benchmarks.simulated.sizes import Sizes
from benchmarks.simulated.workload import Workload

KINDS = (
    ("miss_pull", "pulls"),
    ("update_push", "update"),
    ("evict_push", "evict"),
    ("all_reduce", "reduce"),
    ("dense", "dense"),
)
"""Field of a result, and its column; a column in which nothing moved is omitted."""


def dispatch_table(results: Sequence[DispatchResult], workload: Workload) -> Table:
    """One line per policy: cost and its parts, hit ratio, time of the slowest link, time to decide."""
    table = Table(
        title=f"{results[0].steps} steps, {workload.workers} workers × {workload.batch} samples, "
        f"links {workload.links},\n"
        f"caches of {workload.cache_rows:,} rows ({workload.eviction}), {_dense_part(workload.sizes)};\n"
        "costs in 1,000 rows with their state over the fastest downlink",
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
    kinds = zip(KINDS, workload.cost_5n, strict=True)
    costs = {name: float(cost_n @ getattr(result, field)) for (field, name), cost_n in kinds}
    return {
        "policy": result.policy,
        "cost": _thousands(result.cost),
        "saved": f"{saving(result, first):.1%}",
        **{name: _thousands(cost) for name, cost in costs.items()},
        **(_written_behind(result) if workload.write_behind else {}),
        "hits": f"{result.hit_ratio:.1%}",
        "links": _thousands(result.link_time),
        "faster": f"{speed_up(result, first):.2f}×",
        "p50/p99": f"{result.decide_ms.p50:.1f}/{result.decide_ms.p99:.0f}",
    }


def _written_behind(result: DispatchResult) -> dict[str, str]:
    """Rows that are not part of the cost: what was written behind, and what that left for a flush."""
    return {"behind": _thousands(sum(result.behind_push)), "left": _thousands(result.flush_push)}


def _thousands(cost: float) -> str:
    return f"{cost / 1000:,.0f}" if cost >= 10_000 else f"{cost / 1000:.2f}"


def paper_tables(settings: Sequence[Setting]) -> list[Table]:
    """One table or two for each varied quantity."""
    tables = []
    for varied in dict.fromkeys(setting.varied for setting in settings):
        lines = [setting for setting in settings if setting.varied == varied]
        if varied == BREAKDOWN:
            tables.append(_breakdown_table(lines[0]))
        else:
            tables.append(_savings_table(varied, lines))
        if varied == EMBEDDING_SIZE:
            tables.append(_split_table(lines))
    return tables


def _savings_table(varied: str, lines: Sequence[Setting]) -> Table:
    """The cost saved and, in brackets, how many times faster the slowest link is."""
    first, *others = lines[0].policies
    title = f"{varied}: cost saved against {first} (times faster over the slowest link)"
    table = _table(title, f"{first}, cost", *others)
    for setting in lines:
        table.add_row(setting.value, *(_savings(setting.results) or _missing(setting)))
    return table


def _savings(results: Sequence[DispatchResult]) -> list[str]:
    if not results:
        return []
    first, *others = results
    return [f"{first.cost:,.0f}", *(f"{saving(other, first):.1%} ({speed_up(other, first):.2f}×)" for other in others)]


def _split_table(lines: Sequence[Setting]) -> Table:
    """What the slowest worker's time is spent on as rows get wider."""
    table = _table("milliseconds a step over the slowest link: rows + dense part", *lines[0].policies)
    for setting in lines:
        times = [f"{result.link_ms.rows:.1f} + {result.link_ms.dense:.1f}" for result in setting.results]
        table.add_row(setting.value, *(times or _missing(setting)))
    return table


def _breakdown_table(setting: Setting) -> Table:
    """How many fewer rows are moved than under the first policy, by direction."""
    table = _table(f"{setting.value}: rows moved less than under {setting.policies[0]}", "pull", "push", "overall")
    for policy, cells in zip(setting.policies, _breakdown(setting.results) or [_missing(setting)[:3]] * 4, strict=True):
        table.add_row(policy, *cells)
    return table


def _breakdown(results: Sequence[DispatchResult]) -> list[list[str]]:
    moved_P2 = [(sum(result.miss_pull), sum(result.update_push) + sum(result.evict_push)) for result in results]
    moved_P3 = [(pull, push, pull + push) for pull, push in moved_P2]
    return [[f"{1 - part / whole:.1%}" for part, whole in zip(moved, moved_P3[0], strict=True)] for moved in moved_P3]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _missing(setting: Setting) -> list[str]:
    """Replaces results: why there are none."""
    reason = "cache too small" if "caches of" in setting.why_not else "file too short"
    return [reason, *["–"] * (len(setting.policies) - 1)]
