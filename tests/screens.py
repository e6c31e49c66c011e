"""What a terminal shows of a run: ``python -m tests.screens FOLDER`` writes pictures of it, for people to look at.

A real run in pseudo-terminals of 80×24 and of 120×40: its screen as SVG while it starts, trains, waits for events and
is paused, after a worker was drained, and after Ctrl-C. The picture of the demo is docs/demo.svg.
"""

import codecs
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.end_to_end.processes import WAIT_SECONDS, environment, freshet

SIZES = ((80, 24), (120, 40))
DEMO_SIZE = (116, 28)
DEMO_SECONDS = 20.0
"""How long the demo trains before its picture is taken."""
SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\r|\n|[^\x1b\r\n]")
UNFINISHED = re.compile(r"\x1b(?:\[[?0-9;]*|\][^\x07\x1b]*)?$")
LINKS = "5,5,0.5,0.5"
UP_COMMAND = ("up", "--serve", "--set", "dispatch.workers=4", "--set", f"dispatch.links_gbit={LINKS}")


class Screen:
    """The lines of a terminal after its output; supports the escape sequences that the display uses."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._lines: list[list[tuple[str, str]]] = [[]]
        """All lines so far, as (style, character) pairs; the last ones are visible."""
        self._row = self._column = 0
        self._style = ""

    def feed(self, text: str) -> None:
        for found in SEQUENCE.finditer(text):
            self._take(found[0], found[1] or "", found[2] or "")

    def texts(self) -> list[str]:
        """The visible lines."""
        return self.all_texts()[-self.rows :]

    def all_texts(self) -> list[str]:
        """The visible lines, and those that have scrolled away."""
        return ["".join(character for _, character in line).rstrip() for line in self._lines]

    def svg(self, title: str) -> str:
        """A picture of the visible lines."""
        with Path(os.devnull).open("w") as nowhere:
            console = Console(record=True, force_terminal=True, file=nowhere, width=self.columns, height=self.rows)
            for line in self._visible():
                ansi = "".join(f"\x1b[0m{style}{character}" for style, character in line)
                console.print(Text.from_ansi(ansi, no_wrap=True, overflow="crop"))
            return console.export_svg(title=title)

    def _visible(self) -> list[list[tuple[str, str]]]:
        return self._lines[-self.rows :]

    def _take(self, whole: str, numbers: str, kind: str) -> None:
        first = int(numbers) if numbers.isdecimal() else 1
        match kind:
            case "" if whole == "\r":
                self._column = 0
            case "" if whole == "\n":
                self._go_down()
            case "" if len(whole) == 1:
                self._put(whole)
            case "m":
                self._style = "" if numbers in ("", "0") else self._style + whole
            case "A":
                self._row = max(self._row - first, len(self._lines) - self.rows, 0)
            case "K":
                self._lines[self._row] = []
            case "J":
                del self._lines[self._row + 1 :]
                self._lines[self._row] = self._lines[self._row][: self._column]
            case "H":
                self._row, self._column = max(0, len(self._lines) - self.rows), 0
            case "" | "h" | "l":
                pass
            case _:
                raise AssertionError(f"the display used {whole!r}; expected a sequence that this screen knows; add it")

    def _go_down(self) -> None:
        self._row += 1
        if self._row == len(self._lines):
            self._lines.append([])

    def _put(self, character: str) -> None:
        if self._column == self.columns:
            self._column = 0
            self._go_down()
        line = self._lines[self._row]
        line.extend([("", " ")] * (self._column + 1 - len(line)))
        line[self._column] = (self._style, character)
        self._column += 1


class TerminalCommand:
    """A command in a pseudo-terminal, and its screen."""

    def __init__(self, command: list[str], place: Path, columns: int, rows: int) -> None:
        self.screen = Screen(columns, rows)
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        env = environment() | {"TERM": "xterm-256color"}
        del env["COLUMNS"]
        self.process = subprocess.Popen(
            command, cwd=place, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self._ours = ours
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def wait_for(self, condition: Callable[[str], bool]) -> None:
        """Waits until the visible text meets a condition."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition("\n".join(self.screen.texts())):
            is_late = time.monotonic() > deadline or self.process.poll() is not None
            assert not is_late, "\n".join(self.screen.texts())
            time.sleep(0.02)

    def stop(self) -> int:
        """Presses Ctrl-C; returns the exit code when everything that the command printed has been read."""
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(WAIT_SECONDS)
        self._reading.join(WAIT_SECONDS)
        return status

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pending = ""
        while True:
            try:
                pending += decoder.decode(os.read(self._ours, 1 << 16))
            except OSError:  # the command has ended
                os.close(self._ours)
                return
            cut_off = UNFINISHED.search(pending)
            end = cut_off.start() if cut_off else len(pending)
            self.screen.feed(pending[:end])
            pending = pending[end:]


def take_pictures(into: Path, columns: int, rows: int) -> None:
    """Takes pictures of one run in all of its states."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        shown = TerminalCommand(freshet(*UP_COMMAND), place, columns, rows)

        def take(state: str, condition: Callable[[str], bool], settle_seconds: float = 0.0) -> None:
            shown.wait_for(condition)
            time.sleep(settle_seconds)
            (into / f"{columns}x{rows}-{state}.svg").write_text(shown.screen.svg(f"freshet {state}"))

        def run(*arguments: str) -> None:
            subprocess.run(freshet(*arguments), cwd=place, env=environment(), check=True, stdout=subprocess.DEVNULL)

        try:
            take("starting", lambda text: "starting" in text)
            take("waiting", lambda text: "● waiting" in text)
            take("no-events", lambda text: "predictions at" in text and "waiting for events" in text)
            writing = subprocess.Popen(
                freshet("produce", "--dataset", "synthetic", "--rate", "4000", "--duration", "14"),
                cwd=place,
                env=environment(),
                stdout=subprocess.DEVNULL,
            )
            take("training", lambda text: "served: step" in text and "loss 0" in text, 6.0)
            (run_folder,) = place.glob("runs/up-*")
            run("pause", "--folder", str(run_folder))
            take("paused", lambda text: "● paused" in text, 2.0)
            run("resume", "--folder", str(run_folder))
            run("workers", "drain", "worker-3", "--folder", str(run_folder))
            take("drained", lambda text: "worker-3 left" in text, 2.0)
            writing.wait(WAIT_SECONDS)
            take("idle", lambda text: "waiting for events" in text, 2.0)
        finally:
            shown.stop()
        (into / f"{columns}x{rows}-stopped.svg").write_text(shown.screen.svg("freshet stopped"))


def take_demo(into: Path) -> None:
    """Takes the picture for docs/tutorial.md."""
    with tempfile.TemporaryDirectory() as folder:
        shown = TerminalCommand(freshet("demo", "--serve"), Path(folder), *DEMO_SIZE)
        try:
            shown.wait_for(lambda text: "served: step" in text)
            time.sleep(DEMO_SECONDS)
            (into / "demo.svg").write_text(shown.screen.svg("freshet demo"))
        finally:
            shown.stop()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    take_demo(target)
    for columns, rows in SIZES:
        take_pictures(target, columns, rows)
