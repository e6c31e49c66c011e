"""Plans and grids for people: tables, and the conclusion of a plan in a few sentences."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table

from infra.plan.grid import GridPlace
from infra.plan.plan import PlannedSet, PlanResult


def plan_table(result: PlanResult) -> Table:
    """One line per candidate."""
    table = Table(title=_title(result), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("workers", no_wrap=True)
    for name in ("ms a step", "over one", "compute", "rows beside", "rows after", "dense", "decide", "MB a step"):
        table.add_column(name, justify="right")
    table.add_column("limited by")
    alone = next((each for each in result.candidates if each.workers == 1), None)
    for candidate in result.candidates:
        table.add_row(*_line(candidate, alone, f"{candidate.workers} of {len(result.links_gbit)}"))
    if result.own is not None:
        table.add_row(*_line(result.own, alone, f"{result.own.policy}: {result.own.workers}"))
    return table


def grid_table(places: Sequence[GridPlace]) -> Table:
    """One line per place: one worker alone, several, and the own choice."""
    table = Table(title="Steps per second, once settled", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("fastest link, Gbit/s", "samples a step", "one alone", "several", "over one", "planned"):
        table.add_column(name, justify="right")
    table.add_column("own choice", justify="right")
    table.add_column("over the best", justify="right")
    table.add_column("took part")
    for place in places:
        rates = {each.policy: each.settled.median for each in place.fixed}
        (alone,) = (each.settled.median for each in place.fixed if each.workers == 1)
        table.add_row(
            *(f"{place.links_gbit[0]:g}", f"{place.batch:,}", f"{alone:.2f}", f"{rates[place.several]:.2f}"),
            *(f"{place.gain:.2f}×", f"{place.planned_gain:.2f}×", f"{place.own.settled.median:.2f}"),
            *(f"{place.regret.ratio:.2f}×", ", ".join(map(str, place.taking_part))),
        )
    return table


def _title(result: PlanResult) -> str:
    links = ",".join(f"{link:g}" for link in result.links_gbit)
    return (
        f"{result.batches} batches of {result.batch:,} samples, of which the later half counts; links {links} Gbit/s;\n"
        f"dense part {result.dense_bytes / 1e6:.3g} MB, a row {result.row_bytes:,} bytes; compute "
        f"{result.compute}{_sharing(result)}"
    )


def _sharing(result: PlanResult) -> str:
    workers = len(result.links_gbit)
    return "" if result.devices >= workers else f"; {workers} workers share {result.devices} devices"


def _line(candidate: PlannedSet, alone: PlannedSet | None, name: str) -> list[str]:
    ms = candidate.ms
    if ms is None:
        return [name, "cannot", *[""] * 7, "its cache"]
    over = f"{alone.ms.step / ms.step:.2f}×" if alone is not None and alone.ms is not None else ""
    parts = (ms.compute, ms.early_rows, ms.late_rows, ms.dense, ms.decide)
    shown = [f"{part:.1f}" for part in parts]
    return [name, f"{ms.step:.1f}", over, *shown, f"{candidate.megabytes:.2f}", candidate.limited_by]


def plan_lines(result: PlanResult) -> Iterator[str]:
    """The conclusions from the table."""
    possible = [each for each in result.candidates if each.ms is not None]
    fastest = next(each for each in possible if each.workers == result.fastest)
    yield _verdict(result, fastest, possible)
    if result.own is not None:
        others = "" if result.own.workers == result.fastest else ", which is not the fastest set by this plan"
        yield f"{result.own.policy}, given these times, lets {_workers(result.own.workers)} take part{others}"
    for each in result.candidates:
        if each.why_not:
            yield f"{_workers(each.workers)}: {each.why_not}"


def _verdict(result: PlanResult, fastest: PlannedSet, possible: Sequence[PlannedSet]) -> str:
    assert fastest.ms is not None
    if fastest.workers > 1:
        gain = "" if result.speed_up is None else f", {result.speed_up:.3g} times as fast as one worker alone"
        return f"the {_workers(fastest.workers)} with the fastest links are fastest here{gain}; they {_why(fastest)}"
    others = [each for each in possible if each.workers > 1 and each.ms is not None]
    if not others:
        return f"one worker alone is all that there is; its step takes {fastest.ms.step:.1f} ms"
    second = min(others, key=lambda each: each.ms.step if each.ms is not None else 0.0)
    assert second.ms is not None
    longer = second.ms.step / fastest.ms.step
    return (
        f"one worker alone is fastest here; {_workers(second.workers)} would take {longer:.3g} times as long and "
        f"{_why(second)}: more workers bring no speed here, whatever else they are good for"
    )


def _why(candidate: PlannedSet) -> str:
    """What they wait for most."""
    what = {"compute": "compute", "rows": "rows", "dense": "the dense weights", "deciding": "decisions"}
    return f"wait most for {what[candidate.limited_by]}"


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
