"""What every process of a run does during one step: spans on one clock, as a table and a picture."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from rich.table import Table

from benchmarks.train import Experiment, Variant, run_in_turn
from infra.base.errors import FreshetError
from infra.base.process import Stop
from infra.base.trace import FOLDER, Span, trace_events
from infra.run.display import Display

MOST_SPANS = 1_000_000
STEP = "step"
"""The span of a worker that covers a step from its order to its report."""


@dataclass(frozen=True)
class ProcessSpans:
    """The spans of one process, in the order in which they ended."""

    process: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class SpanTime:
    """What one kind of process spends in spans of one name."""

    kind: str
    """dispatcher, shard or worker."""
    name: str
    ms: float
    """A step, in the mean of the processes of this kind."""
    times: float
    """How often, likewise."""


def run_trace(
    folder: Path, experiment: Experiment, variant: Variant, stop: Stop, display: Display
) -> list[ProcessSpans]:
    """Runs a policy, and returns the spans of every process in the steps after the warm-up."""
    traced = replace(experiment, overrides=(*experiment.overrides, f"telemetry.trace_spans={MOST_SPANS}"))
    ((run,),) = run_in_turn(folder, traced, [variant], 1, stop, display).values()
    return after_step(read_spans(run.folder / FOLDER), experiment.warm_up)


def read_spans(folder: Path) -> list[ProcessSpans]:
    """The spans that the processes of a run have written, dispatcher first, then shards, then workers."""
    found = []
    for file in sorted(folder.glob("*.json"), key=lambda file: (kind_of(file.stem), len(file.stem), file.stem)):
        events: list[dict[str, Any]] = msgspec.json.decode(file.read_bytes())["traceEvents"]
        threads = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
        spans = (
            Span(
                each["name"],
                each["ts"] / 1e6,
                (each["ts"] + each["dur"]) / 1e6,
                threads[each["tid"]],
                each["args"]["step"],
                each["tdur"] / 1e6,
            )
            for each in events
            if each["ph"] == "X"
        )
        found.append(ProcessSpans(file.stem, tuple(spans)))
    return found


def after_step(processes: Sequence[ProcessSpans], step: int) -> list[ProcessSpans]:
    """The spans that began when some worker had the order of a later step; raises FreshetError if nobody had one."""
    began = [each.began for each in _orders(processes) if each.step > step]
    if not began:
        raise FreshetError(
            f"the spans of {len(processes)} processes have no order after step {step}; expected some of every worker; "
            "raise --steps"
        )
    first = min(began)
    return [ProcessSpans(each.process, tuple(span for span in each.spans if span.began >= first)) for each in processes]


def usual_step(processes: Sequence[ProcessSpans]) -> tuple[int, float, float]:
    """The step whose length is the median: its number, when its first order began, and when the next step's did."""
    began: dict[int, float] = {}
    for each in _orders(processes):
        began[each.step] = min(each.began, began.get(each.step, each.began))
    steps = sorted(step for step in began if step + 1 in began)
    if not steps:
        raise FreshetError("the spans have no two steps after each other; expected several; raise --steps")
    lengths = {step: began[step + 1] - began[step] for step in steps}
    usual = min(steps, key=lambda step: abs(lengths[step] - median(lengths.values())))
    return usual, began[usual], began[usual + 1]


def span_times(processes: Sequence[ProcessSpans]) -> list[SpanTime]:
    """Time a step by kind of process and name of span; a worker that was given no order in a step counts as idle."""
    steps = len({each.step for each in _orders(processes)})
    spent: dict[tuple[str, str], float] = defaultdict(float)
    times: dict[tuple[str, str], int] = defaultdict(int)
    members: dict[str, int] = defaultdict(int)
    for each in processes:
        members[kind_of(each.process)] += 1
        for span in each.spans:
            spent[kind_of(each.process), span.name] += span.ended - span.began
            times[kind_of(each.process), span.name] += 1
    return [
        SpanTime(kind, name, 1000 * seconds / steps / members[kind], times[kind, name] / steps / members[kind])
        for (kind, name), seconds in sorted(spent.items(), key=lambda item: (item[0][0], -item[1]))
    ]


def span_table(times: Sequence[SpanTime]) -> Table:
    """The times, a line each."""
    table = Table(title="ms a step, in the mean of the processes of a kind; spans may be within others", box=None)
    for name in ("process", "span", "ms", "times"):
        table.add_column(name, justify="left" if name in ("process", "span") else "right")
    for each in times:
        table.add_row(each.kind, each.name, f"{each.ms:.2f}", f"{each.times:.1f}")
    return table


def write_trace(processes: Iterable[ProcessSpans], file: Path) -> None:
    """All processes in one file, for Perfetto or chrome://tracing."""
    events = [
        event
        for number, each in enumerate(processes, 1)
        for event in trace_events(each.process, number, list(each.spans))
    ]
    file.write_bytes(msgspec.json.encode({"traceEvents": events}))


def plot_trace(processes: Sequence[ProcessSpans], file: Path) -> None:
    """Draws the usual step and half of the ones around it: a row for each process, spans within others below them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    step, began, ended = usual_step(processes)
    margin = (ended - began) / 2
    figure = Figure(figsize=(13, 1.5 + 0.55 * len(processes)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    names = dict.fromkeys(span.name for each in processes for span in each.spans)
    colours = {name: f"C{place % 10}" for place, name in enumerate(names)}
    hatches = {name: ("", "///", "...")[place // 10 % 3] for place, name in enumerate(names)}
    drawn: set[str] = set()
    for row, each in enumerate(processes):
        shown = [span for span in each.spans if span.ended > began - margin and span.began < ended + margin]
        for span in shown:
            depth = sum(o.began <= span.began and span.ended <= o.ended and o is not span for o in shown)
            axes.barh(
                row + min(depth, 2) * 0.28,
                1000 * (span.ended - span.began),
                left=1000 * (span.began - began),
                height=0.26,
                color=colours[span.name],
                hatch=hatches[span.name],
                label=None if span.name in drawn else span.name,
            )
            drawn.add(span.name)
    axes.set_yticks([row + 0.28 for row in range(len(processes))], [each.process for each in processes])
    axes.invert_yaxis()
    for edge in (0.0, 1000 * (ended - began)):
        axes.axvline(edge, color="0.6", linewidth=0.8, linestyle="--")
    axes.set_xlim(-1000 * margin, 1000 * (ended - began + margin))
    axes.set_xlabel(f"ms from the first order of step {step}")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=8, frameon=False, fontsize=8)
    figure.savefig(file, dpi=130)


def kind_of(process: str) -> str:
    """dispatcher, shard or worker."""
    return "dispatcher" if process == "dispatcher" else "shard" if process.startswith("ps") else "worker"


def _orders(processes: Iterable[ProcessSpans]) -> list[Span]:
    return [span for each in processes for span in each.spans if span.name == STEP and span.step >= 0]
