"""A reader who pastes the commands of documents into terminals, and checks that they print what the document shows.

A mark before a block of commands, invisible to readers, says what to do with it:

    <!-- run -->                     run it; it must end with status 0
    <!-- run until: TEXT -->         start it in another terminal; continue with the next block once it has printed TEXT
    <!-- run again until: TEXT -->   run it repeatedly until it prints TEXT, as somebody does who waits for something
    <!-- Ctrl-C -->                  output of the command started last when it is interrupted
    <!-- not run: REASON -->         it cannot be run here

A block of Python is run as a program. In a block with prompts (``$ ``) all other lines are the output of the command
above them; ``…`` stands for omitted output. Numbers, times and names may differ.

Checkpoint 7 stands for one of the reader's, and is replaced by the newest; ports are replaced by free ones.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.end_to_end.processes import ROOT, WAIT_SECONDS, environment
from tests.ports import free_port

COMMANDS = r"(?:\$ )?(?:freshet|make|curl|export|uv|ask|kcat|echo|\. |[A-Z_]+=)"
BLOCK = re.compile(r"^(?:<!-- ([^\n]*?) -->\n)?```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
MARK = re.compile(r"run|run until: .+|run again until: .+|Ctrl-C|not run: .+")
CHECKPOINT_NUMBER = re.compile(r"^(freshet (?:checkpoints|snapshots) [^#\n]*?)\b7\b", re.MULTILINE)
TOLD = re.compile(r'"(?:text|verb)":"([^"]*)"')
ELISION = "…"
INSTALLED = ROOT / ".venv" / "bin"


@dataclass(frozen=True)
class DocumentBlock:
    """A block of commands, or of output."""

    mark: str
    """The mark before the block; empty: none."""
    text: str
    language: str = ""

    def argument(self, kind: str) -> str | None:
        """The text after a kind of mark; None if the mark is of another kind."""
        return self.mark.removeprefix(f"{kind}: ") if self.mark.startswith(f"{kind}: ") else None

    def commands(self) -> list[tuple[str, str]]:
        """(command, output shown below it); without prompts the whole block is one command."""
        if "$ " not in (self.text[:2], *(line[:2] for line in self.text.splitlines())):
            return [(self.text, "")]
        found: list[tuple[str, str]] = []
        is_continued = False
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), ""))
            elif is_continued:
                found[-1] = (f"{found[-1][0]}\n{line}", "")
            else:
                command, shown = found[-1]
                found[-1] = (command, f"{shown}{line}\n")
                continue
            is_continued = line.rstrip().endswith(("\\", "|"))
        return found


def blocks_of(document: str) -> list[DocumentBlock]:
    """All blocks of commands of a document, and blocks of output that have a mark."""
    found = BLOCK.findall((ROOT / document).read_text())
    return [
        DocumentBlock(mark, text, language) for mark, language, text in found if mark or is_commands(language, text)
    ]


def is_commands(language: str, text: str) -> bool:
    return not language and re.match(COMMANDS, text) is not None


# ── what is printed ───────────────────────────────────────────────────────────────────────────────────────────────────
def shape_of(line: str) -> str:
    """A line without what may differ: numbers, times, ids, borders and spacing."""
    plain = re.sub(r"[│╭╮╰╯─]", " ", line)
    plain = re.sub(r"\b[0-9a-f]{16,}\b", "0", plain)
    return " ".join(re.sub(r"\d[\d,.:]*(?:[kM]\b)?", "0", plain).split())


def missing_from(printed: str, shown: str) -> list[str]:
    """What a document shows and a command does not print; for JSON, names that only one of them has, and texts."""
    text = "".join(line for line in shown.splitlines(True) if not is_json(line))
    json = "".join(line for line in shown.splitlines(True) if is_json(line))
    return missing_lines(printed, text) + (missing_names(printed, json) if json else [])


def is_json(line: str) -> bool:
    return re.match(r'(?:data: )?\{|\s+"', line) is not None


def missing_lines(printed: str, shown: str) -> list[str]:
    """Lines that are missing, or in another order."""
    left = iter([shape_of(line) for line in printed.splitlines()])
    wanted = [shape_of(line) for line in shown.splitlines() if line.strip() not in ("", "...", ELISION)]
    return [line for line in wanted if line not in left]


def missing_names(printed: str, shown: str) -> list[str]:
    """Names and texts that are shown but not printed, and, if nothing is omitted, those printed but not shown."""
    names, found = (set(re.findall(r'"([^"]+)":', re.sub(r'"\d+":', '"0":', each))) for each in (shown, printed))
    different = sorted(names - found if ELISION in shown else names ^ found)
    told = {shape_of(text) for text in TOLD.findall(printed)}
    return different + [text for text in TOLD.findall(shown) if shape_of(text) not in told and ELISION not in text]


# ── terminals ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def wait_for(condition: Callable[[], bool], says: Callable[[], str]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited too long; {says()}"
        time.sleep(0.02)


class Running:
    """A command that keeps running, in a separate terminal."""

    def __init__(self, command: str, script: str, output: Path, place: Path, env: dict[str, str]) -> None:
        self.command, self._output = command, output
        with output.open("w") as file:
            self._process = subprocess.Popen(["bash", "-ec", script], cwd=place, env=env, stdout=file, stderr=file)

    @property
    def printed(self) -> str:
        return self._output.read_text()

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def wait_for_text(self, text: str) -> None:
        wait_for(lambda: text in self.printed or self.is_over, lambda: self.printed)
        assert text in self.printed, f"{self.command}\n{self.printed}"

    def end(self, interrupts: bool) -> None:
        """Waits until it has ended in order; ``interrupts``: after Ctrl-C."""
        if interrupts and not self.is_over:
            self._process.send_signal(signal.SIGINT)
        assert self._process.wait(WAIT_SECONDS) == 0, f"{self.command}\n{self.printed}"


class DocumentReader:
    """Uses one terminal for commands that end, and one for each command that keeps running."""

    def __init__(self, folder: Path, commands: Path = INSTALLED) -> None:
        """``folder`` is a new one; the reader's own files are in its folder ``here``.

        commands: the folder with the program ``freshet``.
        """
        self.here, self._outputs = folder / "here", folder / "outputs"
        for made in (self.here, self._outputs):
            made.mkdir()
        self._ports = {"8000": str(free_port()), "8100": str(free_port())}
        ports = {"FRESHET_API__PORT": self._ports["8000"], "FRESHET_SERVING__PORT": self._ports["8100"]}
        path = os.pathsep.join([str(commands), str(INSTALLED), os.environ["PATH"]])
        self._env = {**environment(), **ports, "PATH": path}
        self.running: list[Running] = []
        self._shell = subprocess.Popen(["bash", "-e"], stdin=subprocess.PIPE, cwd=self.here, env=self._env, text=True)
        self._count = 0
        self._type("shopt -s expand_aliases\n")  # as in an interactive shell

    def read(self, document: str, after_start: Callable[[str], None] = lambda command: None) -> None:
        """Runs what the marks of a document say; ``after_start`` is called when a running command printed its text."""
        for block in blocks_of(document):
            if (text := block.argument("run until")) is not None:
                self._start(block.text, text)
                after_start(block.text)
            elif (text := block.argument("run again until")) is not None:
                self._repeat(block, text)
            elif block.mark == "Ctrl-C":
                self.running[-1].end(interrupts=True)
                assert missing_from(self.running[-1].printed, block.text) == [], self.running[-1].printed
            elif block.mark == "run" and block.language == "python":
                self._run(f"python - <<'END'\n{block.text}END")
            elif block.mark == "run":
                for command, shown in block.commands():
                    check_output(command, self._run(command), shown)

    def interrupt_all_but(self, kept: str) -> None:
        """Presses Ctrl-C in terminals where another command runs."""
        for each in reversed(self.running):
            if not each.command.startswith(kept):
                each.end(interrupts=True)

    def close(self) -> None:
        """Presses Ctrl-C in all terminals, the newest first."""
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait(WAIT_SECONDS)
        for each in reversed(self.running):
            each.end(interrupts=True)

    def _start(self, block: str, text: str) -> None:
        *before, last = block.strip().replace("\\\n", " ").splitlines()
        for each in self.running:  # the same command is entered again only after the earlier one has ended
            if each.command.split()[:2] == last.split()[:2]:
                each.end(interrupts=False)
        script = self._as_here("\n".join([*before, f"exec {last}"]))  # signals go to the command, not to bash
        output = self._outputs / f"running-{len(self.running)}"
        self.running.append(Running(last, script, output, self.here, self._env))
        self.running[-1].wait_for_text(text)

    def _repeat(self, block: DocumentBlock, text: str) -> None:
        printed = ""

        def has_text() -> bool:
            nonlocal printed
            printed = self._run(block.commands()[0][0])
            return text in printed

        wait_for(has_text, lambda: printed)
        ((command, shown),) = block.commands()
        check_output(command, printed, shown)

    def _run(self, command: str) -> str:
        self._count += 1
        output, done = (self._outputs / f"{name}-{self._count}" for name in ("output", "done"))
        self._type(f"{{\n{self._as_here(command)}\n}} >{output} 2>&1 </dev/null\ntouch {done}\n")
        wait_for(lambda: done.exists() or self._shell.poll() is not None, output.read_text)
        assert done.exists(), f"{command}\n{output.read_text()}"
        return output.read_text()

    def _type(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(text)
        self._shell.stdin.flush()

    def _as_here(self, commands: str) -> str:
        """The commands with the reader's own checkpoint and ports."""
        ports = re.sub(
            r"(localhost|127\.0\.0\.1):(8000|8100)", lambda found: f"{found[1]}:{self._ports[found[2]]}", commands
        )
        checkpoints = sorted(
            int(file.stem) for file in self.here.glob("runs/*/checkpoints/*.json") if file.stem.isdecimal()
        )
        return CHECKPOINT_NUMBER.sub(rf"\g<1>{checkpoints[-1]}", ports) if checkpoints else ports


def check_output(command: str, printed: str, shown: str) -> None:
    """Checks that a command printed what is shown, and no error of an API that the document does not show."""
    assert missing_from(printed, shown) == [], f"{command}\n{printed}"
    assert '"type":"about:blank"' not in printed or '"type":"about:blank"' in shown, f"{command}\n{printed}"
