"""How far a run over a file has come: a bar on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from dispatch.progress.status import Status
from infra.run.display import Display
from infra.run.figures import duration, ratio

LINE_SECONDS = 5.0


class FileProgress(Display):
    """Shows events trained, AUC, logloss and time left; calls ``on_trained`` once all events are trained."""

    def __init__(self, console: Console, before: int, good: int, rejected: int, on_trained: Callable[[], None]) -> None:
        """before: samples that the run had trained already; good, rejected: events that were added."""
        super().__init__(console)
        self._before = before
        self._good = good
        self._rejected = rejected
        self._on_trained = on_trained
        self._line_at = time.monotonic()
        can_redraw = console.is_terminal and not console.is_dumb_terminal
        self._bar = _bar(console) if can_redraw else None
        self._task = self._bar.add_task("starting", total=good, quality="") if self._bar is not None else None

    def __enter__(self) -> "FileProgress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def starting(self, awaited: Sequence[str]) -> None:
        """Shows which processes the run waits for."""
        if self._bar is not None and self._task is not None and awaited:
            self._bar.update(self._task, description=f"waiting for {awaited[0]}")

    def show(self, status: Status, awaited: Sequence[str] = ()) -> None:
        """Shows a status; a run that has trained everything is told to stop."""
        trained = min(status.samples - self._before, self._good)
        if self._bar is not None and self._task is not None:
            words = status.state if status.state != "done" else "saving"
            self._bar.update(self._task, description=words, completed=trained, quality=_quality(status))
        elif trained and time.monotonic() >= self._line_at + LINE_SECONDS:
            self._line_at = time.monotonic()
            self._console.print(Text(self._line(status, trained)), soft_wrap=True)
        is_read = status.events.lag == 0 and status.events.dead_letters >= self._rejected
        if trained == self._good and is_read:
            self._on_trained()

    def _line(self, status: Status, trained: int) -> str:
        rate = status.samples_per_second
        left = f", {duration((self._good - trained) / rate)} left" if rate else ""
        return f"{status.state}: {trained:,} of {self._good:,} events, {_quality(status)}{left}"


def _bar(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[quality]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def _quality(status: Status) -> str:
    return f"AUC {ratio(status.quality.auc)}, logloss {ratio(status.quality.logloss)}"
