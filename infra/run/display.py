"""Shows a run: a live picture in a terminal, one plain line every few seconds elsewhere, and a table at the end.

Rendering is a pure function of the status: only reported values are shown.
"""

import signal
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich import box
from rich.align import Align
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dispatch.placement.traffic import WorkerTraffic
from dispatch.progress.quality import Quality
from dispatch.progress.status import ServedStatus, Status, Summary, WorkerStatus
from dispatch.tally import PHASES, Phase
from infra.run.figures import count, duration, number, percent, ratio, size, sparkline

WIDE_COLUMNS = 100
"""Width from which on the table has room for the phases of a step."""
WIDEST_COLUMNS = 110
FRAME_COLUMNS = 6
"""Border and padding of the panel."""
TILES_COLUMNS = 70
"""Width inside the panel from which on all tiles fit."""
LEFT_OUT = ("recent AUC", "lag", "loss")
"""Tiles that are omitted if there is little room, in this order."""
PHASE_COLUMNS = 26
"""Columns of the table that the phases of a step take."""
MOST_NAMES = 6
"""Most names that are shown of a list of fields or workers."""
STOPS = "Ctrl-C drains and stops"
PARKED = " parked"
"""Follows the name of a worker that gets no samples."""
LEFT = " left"
"""Follows the name of a worker that takes part no more."""
LINES_BELOW = 2
"""Lines below a summary: how the run is resumed, and the next prompt."""
IDLE_SECONDS = 5.0
"""Time after the last step from which on a run is said to wait for events."""
AWAITS_EVENTS = "waiting for events"
STATE_STYLES: dict[str, str] = {
    AWAITS_EVENTS: "yellow",
    "waiting": "yellow",
    "replaying": "cyan",
    "training": "green",
    "paused": "yellow",
    "draining": "magenta",
    "done": "blue",
}
COLUMNS = {
    "link\nGbit/s": 3,
    "\nsamples": 1,
    "cache\nhits": 2,
    "miss\npulls": 6,
    "update\npushes": 7,
    "evict\npushes": 8,
    "bytes\npulled": 4,
    "bytes\npushed": 5,
}
"""Columns of the table and their ranks: if there is little room, those of the highest ranks are omitted."""
PHASE_STYLES: dict[Phase, str] = {
    "push": "magenta",
    "pull": "blue",
    "forward": "green",
    "backward": "cyan",
    "reduce": "yellow",
    "rows": "red",
}


# ── the picture ───────────────────────────────────────────────────────────────────────────────────────────────────────
class Picture:
    """Draws a status with rich, laid out for the width of the console."""

    def __init__(self, status: Status, awaited: Sequence[str] = (), hint: str = STOPS) -> None:
        """hint: shown below a run that trains."""
        self.status = status
        self.awaited = awaited
        self.hint = hint

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, WIDEST_COLUMNS)
        parts = _stack(self.status, self.awaited, width)
        for blanks, shown in ((True, parts), (False, parts), (False, parts[:1] + parts[2:])):
            panel = self._panel(shown, blanks, width)
            if not console.is_terminal or len(console.render_lines(panel, options)) <= console.height:
                break
        yield panel

    def _panel(self, parts: Sequence[RenderableType], has_blanks: bool, width: int) -> Panel:
        status = self.status
        state = state_of(self.status)
        style = STATE_STYLES[state]
        spaced = [line for part in parts for line in (part, "")][:-1] if has_blanks else parts
        return Panel(
            Group(*spaced),
            title=_title(status.run, (f"● {state}", f"bold {style}")),
            title_align="left",
            subtitle=Text(f" {self.hint} ", style="dim") if self.hint and status.state == "training" else None,
            subtitle_align="right",
            border_style=style,
            box=box.ROUNDED,
            padding=(int(has_blanks), 2, 0, 2),
            width=width,
        )


def state_of(status: Status) -> str:
    """The state in words; a run that could train and has had nothing to train for a while waits for events."""
    is_idle = status.state == "training" and status.idle_seconds > IDLE_SECONDS and not status.troubles
    return AWAITS_EVENTS if is_idle else status.state


def _title(run: str, end: tuple[str, str]) -> Text:
    return Text.assemble(" ", ("freshet", "bold"), f" · {run} · ", end, " ")


def _stack(status: Status, awaited: Sequence[str], width: int) -> list[RenderableType]:
    """The parts of the picture from top to bottom; the second can be omitted if there is little room."""
    inside = width - FRAME_COLUMNS
    table = worker_table(status.workers, width) if status.workers else Text(_before_workers(awaited), style="dim")
    return [_tiles(status, inside), _curves(status, inside), table, _facts(status, inside)]


def _before_workers(awaited: Sequence[str]) -> str:
    return f"waiting for {', '.join(awaited)}" if awaited else "no worker yet"


def _tiles(status: Status, width: int) -> RenderableType:
    """The most important figures, each under its title and above a note; fewer of them if there is little room."""
    quality = status.quality
    known = "" if status.best_auc is None else ratio(status.best_auc, 3)
    best = known and f"{'best possible' if width >= TILES_COLUMNS else 'best'} {known}"
    tiles = [
        ("samples/s", number(status.samples_per_second), f"{number(status.samples)} samples", "bold cyan"),
        ("loss", ratio(quality.logloss), f"entropy {ratio(quality.normalized_entropy, 3)}", "bold"),
        ("AUC", ratio(quality.auc), best, "bold green"),
        ("recent AUC", ratio(status.recent_quality.auc), f"calibr. {ratio(quality.calibration, 3)}", "bold green"),
        ("lag", number(status.events.lag), f"{number(status.events.dead_letters)} dead", "bold"),
    ]
    widths = {tile[0]: max(len(text) for text in tile[:3]) + 1 for tile in tiles}
    for title in LEFT_OUT:
        if sum(widths.values()) > width:
            del widths[title]
    tiles = [tile for tile in tiles if tile[0] in widths]
    grid = Table.grid(expand=True, padding=(0, 1, 0, 0))
    for columns in widths.values():
        grid.add_column(ratio=columns, no_wrap=True)
    grid.add_row(*[Text(title, style="dim") for title, *_rest in tiles])
    grid.add_row(*[Text(value, style=style) for _title, value, _note, style in tiles])
    grid.add_row(*[Text(note, style="dim") for _title, _value, note, _style in tiles])
    return grid


def _curves(status: Status, width: int) -> RenderableType:
    """AUC and loss side by side, each with its first and last value."""
    if not status.history.auc:
        hint = "" if status.state != "training" or status.samples else "; 'freshet produce' writes events"
        return Text(f"AUC and loss appear with the first steps{hint}", style="dim")
    each = max(1, (width - 39) // 2)
    grid = Table.grid(padding=(0, 1))
    cells: list[RenderableType] = []
    for title, values, style in (("AUC", status.history.auc, "green"), ("loss", status.history.logloss, "cyan")):
        line = Text(sparkline(values, each), style=style)
        first, last = (ratio(values[0], 3), ratio(values[-1], 3)) if values else ("", "")
        cells += [Text(title, style="dim"), Text(first, style="dim"), line, Text(f"{last}  ")]
    grid.add_row(*cells)
    return grid


def _slices(status: Status) -> list[str]:
    """For each sliced field, the lowest and the highest AUC of its frequent values."""
    aucs: dict[str, list[float]] = {}
    for found in status.over_time.run.slices if status.over_time.run is not None else ():
        if found.auc is not None:
            aucs.setdefault(found.field, []).append(found.auc)
    return [f"AUC {ratio(min(each), 3)} to {ratio(max(each), 3)} by {field}" for field, each in aucs.items()]


def _facts(status: Status, width: int) -> RenderableType:
    facts = [f"step {status.step:,}", f"generation {status.generation}", duration(status.seconds)]
    if status.policy and status.steps:
        facts.append(f"{status.policy} decides in {status.decisions.mean_ms:.1f} ms")
    if status.alpha is not None:
        facts.append(_alpha(status))
    if reduced := _reduced(status.workers):
        facts.append(reduced)
    facts += _slices(status)
    if alarms := status.drift.alarms:
        newest = alarms[-1]
        facts.append(f"{newest.what} changed at sample {newest.sample:,}")
    if status.decisions.deadline_misses:
        facts.append(f"{count(status.decisions.deadline_misses, 'decision')} too late")
    if status.events.skipped:
        facts.append(f"{number(status.events.skipped)} events skipped")
    if status.events.omitted:
        facts.append(f"{number(status.events.omitted)} negatives omitted")
    if status.keys.known:
        facts.extend(_rows(status))
    lines = Text()
    if status.quality.not_finite:
        lines.append(f"{_diverged(status)}\n", style="bold red")
    if status.fields.absent:
        lines.append(f"{_absent(status)}\n", style="bold red")
    for trouble in status.troubles:
        lines.append(f"{trouble}\n", style="bold red")
    if held := _held(status.served):
        lines.append(f"{held}\n", style="bold yellow")
    if choice := _choice(status):
        lines.append(f"{choice}\n", style="cyan")
    if served := _served(status.served):
        lines.append(f"{served}\n", style="green")
    return Align.left(lines.append(_wrapped(facts, width), style="dim"))


def _rows(status: Status) -> list[str]:
    """How many keys have rows, what became of others, and how many chunks of the rows are live."""
    keys = status.keys
    chunks = status.chunks
    others = {"forgotten": keys.forgotten, "times rare": keys.rare}
    known = ", ".join((f"{number(keys.known)} keys", *(f"{number(n)} {what}" for what, n in others.items() if n)))
    if not chunks.per_row:
        return [known]
    share = percent(chunks.live / max(1, chunks.per_row * keys.known))
    room = f", room for {number(chunks.budget)}" if chunks.budget else ""
    width = f", {number(chunks.columns)} columns" if chunks.columns < chunks.dim else ""
    return [known, f"{number(chunks.live)} chunks live ({share}{room}{width})"]


def _wrapped(facts: Sequence[str], width: int) -> str:
    """Facts side by side; a line ends between two of them."""
    lines = [facts[0]]
    for fact in facts[1:]:
        if len(longer := f"{lines[-1]} · {fact}") <= width:
            lines[-1] = longer
        else:
            lines.append(fact)
    return "\n".join(lines)


def _served(served: ServedStatus, has_age: bool = True) -> str:
    """Which snapshot is served, and how fresh it is, with the age of its newest event; empty if nobody serves one."""
    if not served.servers or not served.checkpoint:
        return ""
    fresh = served.freshness
    timeline = f", timeline {served.timeline}" if served.timeline else ""
    parts = [f"served: step {served.step:,}{timeline}"]
    if fresh.p50_seconds is not None and fresh.p99_seconds is not None:
        parts.append(f"freshness p50 {fresh.p50_seconds:.1f} s, p99 {fresh.p99_seconds:.1f} s")
    if has_age and fresh.age_seconds is not None:
        parts.append(f"newest event {duration(fresh.age_seconds)} old")
    if fresh.ahead:
        parts.append(f"{count(fresh.ahead, 'event')} dated ahead")
    return ", ".join(parts)


def _held(served: ServedStatus) -> str:
    """Why the newest snapshot is held back; empty if it is not, or nobody would serve it."""
    return (
        f"snapshot {served.newest_checkpoint} held back: {'; '.join(served.held)}"
        if served.servers and served.held
        else ""
    )


def _alpha(status: Status) -> str:
    """The share that is solved exactly, who sets it, and where it is solved."""
    backend = f", {status.opt_backend}" if status.opt_backend else ""
    return f"α {status.alpha:g} ({status.alpha_mode}{backend})"


def _diverged(status: Status) -> str:
    found = count(status.quality.not_finite, "prediction")
    return f"{found} {'was' if status.quality.not_finite == 1 else 'were'} not finite: the model has diverged"


def _absent(status: Status) -> str:
    """Which fields no event has, and which unknown ones the events have instead."""
    instead = f"; not in the schema: {_listed(status.fields.unknown)}" if status.fields.unknown else ""
    return f"no event has {_listed(status.fields.absent)}{instead}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _reduced(workers: Sequence[WorkerStatus]) -> str:
    """Bytes sent to all-reduce replicated rows; empty if none were."""
    total = _total(workers)
    return f"{number(total.all_reduces)} rows all-reduced, {size(total.reduced_bytes)}" if total.all_reduces else ""


def _written_behind(workers: Sequence[WorkerStatus]) -> str:
    """Rows that owners wrote back ahead of checkpoints, and those that were left for flushes; empty
    if there were none.
    """
    total = _total(workers)
    behind = number(total.behind_pushes)
    flushed = number(total.flush_pushes)
    return f"{behind} rows ahead of flushes, which wrote {flushed}" if total.behind_pushes else ""


def _dense_moved(workers: Sequence[WorkerStatus]) -> str:
    """Bytes of the dense part that crossed the workers' links; empty if none did."""
    total = _total(workers)
    up = total.dense_up_bytes
    down = total.dense_down_bytes
    return f"; {size(up)} up, {size(down)} down" if up + down else ""


def _messages(workers: Sequence[WorkerStatus]) -> str:
    """Bytes that the dispatcher sent to the workers, and they to it."""
    total = _total(workers)
    return f"{size(total.order_bytes)} to workers, {size(total.report_bytes)} of reports from them"


def worker_table(workers: Sequence[WorkerStatus], width: int) -> RenderableType:
    """Traffic per worker by kind, its cache and its link; the phases of a step if there is room."""
    if not workers:
        return Text("no worker yet", style="dim")
    wide = width >= WIDE_COLUMNS and any(worker.seconds.total for worker in workers)
    rows = [[_link(worker), *_counts(worker.traffic)] for worker in workers]
    total = [Text(""), *_counts(_total(workers))]
    names = max(len(_name(worker)) for worker in workers)
    room = width - FRAME_COLUMNS - names - (PHASE_COLUMNS if wide else 0)
    shown = _columns_for(room, [*rows, total])
    table = Table(box=box.SIMPLE_HEAD, expand=True, padding=0, pad_edge=False, header_style="dim", show_edge=False)
    table.add_column("worker\n", no_wrap=True, min_width=names)
    for column in shown:
        table.add_column(list(COLUMNS)[column], justify="right", no_wrap=True)
    if wide:
        table.add_column("step\n", justify="right", no_wrap=True)
        table.add_column(_phase_legend(), no_wrap=True)
    for worker, row in zip(workers, rows, strict=True):
        timing: list[RenderableType] = [_milliseconds(worker), _phases(worker)] if wide else []
        table.add_row(_name(worker), *(row[column] for column in shown), *timing)
    if len(workers) > 1:
        table.add_section()
        blanks = [""] * (2 if wide else 0)
        table.add_row(Text("all", style="bold"), *(total[column] for column in shown), *blanks)
    return table


def _columns_for(room: int, rows: Sequence[Sequence[Text]]) -> list[int]:
    """The columns that fit side by side, with a gap before each; the important ones come first."""
    shown: list[int] = []
    for column, (title, _rank) in sorted(enumerate(COLUMNS.items()), key=lambda item: item[1][1]):
        room -= 1 + max(*(len(part) for part in title.split("\n")), *(len(row[column]) for row in rows))
        if room < 0:
            break
        shown.append(column)
    return sorted(shown)


def _name(worker: WorkerStatus) -> Text:
    if worker.has_left:
        return Text(worker.name + LEFT, style="dim")
    return Text.assemble(worker.name, (PARKED, "yellow")) if worker.is_parked else Text(worker.name)


def _choice(status: Status) -> str:
    """Who takes part and why; empty if nothing was chosen."""
    choice = status.choice
    taking = [worker.name for worker in status.workers if not worker.is_parked and not worker.has_left]
    if not choice.reason or not taking:
        return ""
    before = "" if choice.before_ms is None else f" instead of {choice.before_ms:.0f}"
    times = "" if choice.expected_ms is None else f", {choice.expected_ms:.0f} ms a step{before}"
    return f"{_listed(taking)} {'trains alone' if len(taking) == 1 else 'train'}: {choice.reason}{times}"


def _parked(workers: Sequence[WorkerStatus]) -> str:
    """Who is parked; empty if nobody is."""
    parked = [worker.name for worker in workers if worker.is_parked and not worker.has_left]
    return f"{_listed(parked)} parked" if parked else ""


def _link(worker: WorkerStatus) -> Text:
    if worker.link_gbit is None and worker.measured_gbit is not None:
        both = _both_ways(f"{worker.measured_gbit:.2g}", f"{worker.measured_uplink_gbit or worker.measured_gbit:.2g}")
        return Text(f"~{both}", style="dim")
    if worker.link_gbit is None:
        return Text("–", style="dim")
    uplink_gbit = worker.uplink_gbit or worker.link_gbit
    both = _both_ways(f"{worker.link_gbit:g}", f"{uplink_gbit:g}")
    return Text(both, style="yellow" if min(worker.link_gbit, uplink_gbit) < 1 else "")


def _both_ways(down: str, up: str) -> str:
    """The speeds of both directions of a link, once if they are equal."""
    return down if up == down else f"{down} / {up}"


def _counts(traffic: WorkerTraffic) -> list[Text]:
    return [
        Text(number(traffic.samples)),
        Text(percent(traffic.hit_ratio), style="green"),
        Text(number(traffic.miss_pulls)),
        Text(number(traffic.update_pushes)),
        Text(number(traffic.evict_pushes)),
        Text(size(traffic.pulled_bytes)),
        Text(size(traffic.pushed_bytes)),
    ]


def _milliseconds(worker: WorkerStatus) -> str:
    return f"{1000 * worker.seconds.total:.1f} ms"


def _phase_legend() -> Text:
    short = ("push", "pull", "fwd", "bwd")
    first = Text.assemble(*[(f"{name} ", PHASE_STYLES[phase]) for name, phase in zip(short, PHASES, strict=False)])
    first.rstrip()
    return Text.assemble(first, "\n", ("reduce ", PHASE_STYLES["reduce"]), ("rows", PHASE_STYLES["rows"]))


def _phases(worker: WorkerStatus, columns: int = 17) -> Text:
    """A bar divided into the phases of a step."""
    total = worker.seconds.total or 1.0
    bar = Text()
    done = 0.0
    drawn = 0
    for phase, seconds in worker.seconds.by_phase().items():
        done += seconds
        end = round(columns * done / total)
        bar.append("━" * (end - drawn), style=PHASE_STYLES[phase])
        drawn = end
    return bar


def _total(workers: Sequence[WorkerStatus]) -> WorkerTraffic:
    return sum((worker.traffic for worker in workers), start=WorkerTraffic())


def plain_line(status: Status, awaited: Sequence[str] = ()) -> str:
    """One line for a log."""
    if awaited and status.state == "waiting":
        return f"waiting: for {', '.join(awaited)}"
    best = "" if status.best_auc is None else f" (best possible {ratio(status.best_auc, 3)})"
    total = _total(status.workers)
    quality = status.quality
    events = status.events
    return (
        f"{state_of(status)}: step {status.step:,}, {number(status.samples)} samples, "
        f"{number(status.samples_per_second)}/s, "
        f"loss {ratio(quality.logloss)}, AUC {ratio(quality.auc)}{best}, lag {number(events.lag)}, "
        f"{f'skipped {number(events.skipped)}, ' if events.skipped else ''}"
        f"hits {percent(total.hit_ratio)}, pulled {size(total.pulled_bytes)}, pushed {size(total.pushed_bytes)}"
        + (f", {_alpha(status)}" if status.alpha is not None and status.alpha_mode != "fixed" else "")
        + (f", no event has {_listed(status.fields.absent)}" if status.fields.absent else "")
        + (f", {served}" if (served := _served(status.served)) else "")
        + (f", {held}" if (held := _held(status.served)) else "")
        + "".join(f"; {trouble}" for trouble in status.troubles)
        + (f", {reduced}" if (reduced := _reduced(status.workers)) else "")
        + (f", {parked}" if (parked := _parked(status.workers)) else "")
        + (f"; {choice}" if (choice := _choice(status)) else "")
    )


# ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────────
class SummaryPicture:
    """The closing table of a run."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, WIDEST_COLUMNS)
        panel = self._panel(width, has_blanks=True)
        if console.is_terminal and len(console.render_lines(panel, options)) > console.height - LINES_BELOW:
            panel = self._panel(width, has_blanks=False)
        yield panel

    def _panel(self, width: int, has_blanks: bool) -> Panel:
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim", no_wrap=True)
        facts.add_column()
        for name, value in _summary_facts(self.summary):
            facts.add_row(name, Text(value))
        table = worker_table(self.summary.status.workers, width)
        reason = self.summary.exit_reason
        return Panel(
            Group(*((facts, "", table) if has_blanks else (facts, table))),
            title=_title(
                self.summary.status.run, (f"stopped by {reason}" if is_signal(reason) else reason, "bold blue")
            ),
            title_align="left",
            border_style="blue",
            box=box.ROUNDED,
            padding=(int(has_blanks), 2, 0, 2),
            width=width,
        )


def is_signal(reason: str) -> bool:
    return reason in signal.Signals.__members__


def _label_facts(quality: Quality) -> str:
    """The quality of one of several labels."""
    return f"loss {ratio(quality.logloss)}, AUC {ratio(quality.auc)}, calibration {ratio(quality.calibration)}"


def _summary_facts(summary: Summary) -> list[tuple[str, str]]:
    status = summary.status
    quality = summary.status.quality
    speed = f"{duration(status.seconds)}, {number(summary.samples_per_second)} samples/s"
    best = "" if status.best_auc is None else f", best possible {ratio(status.best_auc)}"
    entropy = ratio(quality.normalized_entropy)
    calibration = ratio(quality.calibration)
    facts = [
        ("trained", f"{count(status.samples, 'sample')} in {count(status.steps, 'step')}, {speed}"),
        ("loss", f"{ratio(quality.logloss)}, normalized entropy {entropy}, calibration {calibration}"),
        ("AUC", f"{ratio(quality.auc)}, lately {ratio(status.recent_quality.auc)}{best}"),
        *((name, _label_facts(found.quality)) for name, found in status.labels.items()),
        (
            "left",
            f"{count(status.events.lag, 'event')} in the topic, {count(status.events.dead_letters, 'dead letter')}",
        ),
        ("rows", ", ".join(_rows(status))),
        ("policy", _decided(status)),
    ]
    if summary.dense_weights:
        sizes = f"{count(summary.dense_weights, 'weight')}, {size(summary.dense_bytes)}"
        facts.append(("dense part", sizes + _dense_moved(status.workers)))
    if reduced := _reduced(status.workers):
        facts.append(("hot rows", reduced))
    if behind := _written_behind(status.workers):
        facts.append(("write-behind", behind))
    if status.workers:
        facts.append(("orders", _messages(status.workers)))
    if status.events.skipped:
        facts.append(("skipped", f"{count(status.events.skipped, 'event')}, to keep up or because they were gone"))
    if status.events.omitted:
        facts.append(("omitted", f"{count(status.events.omitted, 'negative')}, which others count for"))
    if served := _served(status.served, has_age=False):
        facts.append(("served", served.removeprefix("served: ")))
    if quality.not_finite:
        facts.append(("broken", _diverged(status)))
    if status.fields.absent:
        facts.append(("fields", _absent(status)))
    facts += [("trouble", trouble) for trouble in status.troubles]
    if summary.restarts:
        facts.append(("restarts", ", ".join(f"{name} {count}" for name, count in sorted(summary.restarts.items()))))
    if summary.killed:
        facts.append(("killed", f"{', '.join(summary.killed)}: did not stop in time"))
    return facts


def _decided(status: Status) -> str:
    """The policy, and how many decisions missed their deadline or were shortened to meet it."""
    generations = count(status.generation, "generation")
    checkpoint = f", {status.decisions.cut_short:,} cut short" if status.decisions.cut_short else ""
    late = (
        f", {count(status.decisions.deadline_misses, 'decision')} too late" if status.decisions.deadline_misses else ""
    )
    return f"{status.policy}, {generations}{checkpoint}{late}"


def render_summary(summary: Summary) -> RenderableType:
    """The closing table, for ``console.print``."""
    return SummaryPicture(summary)


class Display:
    """Shows statuses as they come: a live picture on a terminal, one line every few seconds elsewhere."""

    def __init__(
        self,
        console: Console | None = None,
        line_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        hint: str = STOPS,
        keeps_picture: bool = False,
    ) -> None:
        """hint: shown below a run that trains.

        keeps_picture: the last one stays on the terminal; a run's own display ends with a summary instead.
        """
        self._hint = hint
        self._keeps_picture = keeps_picture
        self._picture: Picture | None = None
        self._console = console or Console()
        self._line_seconds = line_seconds
        self._clock = clock
        self._next_line = clock()
        self._shown: tuple[str, bool, int] | None = None
        """State, whether anything was wrong, and step of the last line."""
        self._start_line = ""
        can_redraw = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if can_redraw else None

    def __enter__(self) -> "Display":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Removes the live picture, as a whole even if it is as tall as the terminal; no summary follows an error."""
        if self._live is None:
            return
        self._live.update(Text(), refresh=True)
        self._live.stop()
        if self._picture is not None and (self._keeps_picture or error is not None):
            self._console.print(self._picture)

    def print_line(self, line: str) -> None:
        """Prints one line; on a terminal it stays above the picture."""
        self._console.print(Text(line), soft_wrap=self._live is None)

    def starting(self, awaited: Sequence[str]) -> None:
        """Shows which processes the run waits for, before there is a status."""
        line = f"starting: waiting for {', '.join(awaited)}" if awaited else "starting"
        if self._live is not None:
            self._live.update(Text(f" ● {line}", style="yellow", no_wrap=True, overflow="ellipsis"), refresh=True)
        elif awaited and line != self._start_line and self._clock() >= self._next_line:
            self._console.print(Text(line), soft_wrap=True)
            self._start_line, self._next_line = line, self._clock() + self._line_seconds

    def show(self, status: Status, awaited: Sequence[str] = ()) -> None:
        """Redraws the picture; elsewhere prints a line if one is due, the state changes, or trouble begins or ends."""
        if self._live is not None:
            self._picture = Picture(status, awaited, self._hint)
            self._live.update(self._picture, refresh=True)
            return
        now = state_of(status), bool(status.troubles or _held(status.served)), status.step
        changed = self._shown is None or self._shown[:2] != now[:2]
        if changed or (self._clock() >= self._next_line and self._shown != now):
            self._console.print(Text(plain_line(status, awaited)), soft_wrap=True)
            self._shown = now
            self._next_line = self._clock() + self._line_seconds
