"""The result of a run of chaos, as values and as tables."""

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from infra.chaos.census import Measured
from infra.chaos.strikes import Struck
from infra.chaos.usage import Levels
from infra.run.figures import size
from infra.verify.finding import REPLAY, Finding


class ChaosReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run of chaos."""

    folder: str
    seed: int
    seconds: float
    struck: tuple[Struck, ...]
    missed: int
    """Faults for which there was no process in time."""
    steps: int
    longest_seconds: float
    """Longest time without a new completed step."""
    measured: tuple[Measured, ...]
    findings: tuple[Finding, ...]
    """Findings of the checker."""
    surprises: tuple[str, ...]
    """What happened to the run that no fault explains."""
    levels: Levels = Levels(0)
    """Levels of what the run used."""

    @property
    def violations(self) -> list[str]:
        """All violations; a replay that could not be made is one, too: here only a fault of ours can prevent it."""
        bad = [each for each in self.findings if each.ok is False or each.name == REPLAY]
        return [*self.surprises, *(f"{each.name}: {each.found}" for each in bad)]


def by_kind(struck: Sequence[Struck]) -> Iterator[tuple[str, int, int]]:
    """(process, times killed, times stopped), by process."""
    counts = Counter((each.process, each.kind) for each in struck)
    for process in sorted({each.process for each in struck}):
        yield process, counts[process, "kill"], counts[process, "stop"]


def show_report(report: ChaosReport, console: Console) -> None:
    faults = _table("process", "killed", "stopped")
    for process, killed, stopped in by_kind(report.struck):
        faults.add_row(process, str(killed), str(stopped))
    usage = _table("process", "starts", "memory first", "last", "most", "descriptors first", "last", "most")
    for each in report.measured:
        memory = (size(value.rss_bytes) for value in (each.first, each.last, each.most))
        files = (str(value.descriptors) for value in (each.first, each.last, each.most))
        usage.add_row(each.name, str(each.starts), *memory, *files)
    line = (
        f"{len(report.struck)} faults in {report.seconds:.0f} s with seed {report.seed}, {report.missed} that found no "
        f"process; {report.steps:,} steps; at most {report.longest_seconds:.1f} s without a new one"
    )
    console.print(Group(faults, Text(), usage, Text(), level_table(report.levels), Text(), Text(line)))
    for violation in report.violations:
        console.print(Text(f"violated: {violation}", style="bold red"), soft_wrap=True)


def level_table(levels: Levels) -> Table:
    """The first quarter compared with the last, for a process on average and for the folder."""
    table = _table(f"{levels.samples} samples", "first quarter", "last quarter", "most")
    for each in levels.memory:
        table.add_row(f"memory of {each.name}", size(each.first), size(each.last), size(each.most))
    for each in levels.descriptors:
        table.add_row(f"descriptors of {each.name}", f"{each.first:.1f}", f"{each.last:.1f}", f"{each.most:.0f}")
    for each in levels.folder:
        table.add_row(f"folder: {each.name}", size(each.first), size(each.last), size(each.most))
    return table


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table
