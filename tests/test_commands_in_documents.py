"""The commands of README, run as they stand there, in order, in a fresh folder.

A mark before a block of commands, which readers do not see, says what becomes of it:

    <!-- run -->               it ends with status 0
    <!-- run until: TEXT -->   it goes on in the background; the next block begins once it has printed TEXT
    <!-- not run: REASON -->   it cannot be run here
"""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from dispatch.journal.history import read_history
from infra.kafka.broker import free_port
from tests.end_to_end.processes import ROOT, WAIT_SECONDS, environment

COMMANDS = r"(?:\$ )?(?:freshet|make|curl|export|\. |[A-Z]+=)"
BLOCK = re.compile(rf"^(?:<!-- (.*?) -->\n)?```\n({COMMANDS}.*?)^```", re.DOTALL | re.MULTILINE)
MARK = re.compile(r"run|run until: .+|not run: .+")
LINES = 3000
SCHEMA = "".join(f'[[tables]]\nname = "{name}"\n' for name in ("user", "item", "hour"))


def blocks() -> list[tuple[str, str]]:
    """(mark, commands) of every block of commands in README."""
    return BLOCK.findall((ROOT / "README.md").read_text())


def test_every_block_of_commands_says_whether_it_is_run() -> None:
    assert len(blocks()) >= 6
    assert [commands for mark, commands in blocks() if not MARK.fullmatch(mark)] == []


def own_files(place: Path) -> None:
    """What a reader brings along: a click log and its schema."""
    (place / ".venv").symlink_to(ROOT / ".venv")
    (place / "mine.toml").write_text(f'name = "mine"\n{SCHEMA}')
    with (place / "clicks.jsonl").open("w") as file:
        for number in range(LINES):
            fields = {"user": f"u{number % 50}", "item": number % 60, "hour": number % 24}
            event = {"event_time": 1731600000.25 + number, "label": int(number % 3 == 0), "fields": fields}
            file.write(json.dumps(event) + "\n")


class Shell:
    """Runs blocks one after the other, with ports of its own for those that the documents name."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._ports = {"8000": str(free_port()), "8100": str(free_port())}
        ports = {"FRESHET_API__PORT": self._ports["8000"], "FRESHET_SERVING__PORT": self._ports["8100"]}
        path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self._env = {**environment(), **ports, "PATH": path}
        self._running: list[subprocess.Popen[bytes]] = []

    def run(self, commands: str) -> str:
        command = ["bash", "-ec", self._with_ports(commands)]
        done = subprocess.run(
            command, cwd=self._place, env=self._env, capture_output=True, text=True, timeout=WAIT_SECONDS
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        return done.stdout

    def run_until(self, commands: str, text: str) -> None:
        output = self._place / f"output-{len(self._running)}"
        *before, last = commands.strip().splitlines()
        script = self._with_ports("\n".join([*before, f"exec {last}"]))  # signals go to the command, not to bash
        with output.open("w") as file:
            self._running.append(
                subprocess.Popen(["bash", "-ec", script], cwd=self._place, env=self._env, stdout=file, stderr=file)
            )
        deadline = time.monotonic() + WAIT_SECONDS
        while text not in output.read_text():
            assert self._running[-1].poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.05)

    def end(self) -> list[int]:
        """Ctrl-C for all that still run, the newest first; their statuses."""
        for process in reversed(self._running):
            process.send_signal(signal.SIGINT)
            process.wait(WAIT_SECONDS)
        return [process.returncode for process in self._running]

    def _with_ports(self, commands: str) -> str:
        return re.sub(r"localhost:(8000|8100)", lambda found: f"localhost:{self._ports[found[1]]}", commands)


@pytest.mark.timeout(600)
def test_the_commands_of_the_readme_train_every_line_and_predict(tmp_path: Path) -> None:
    own_files(tmp_path)
    shell, answers = Shell(tmp_path), list[str]()
    try:
        for mark, commands in blocks():
            if mark.startswith("run until: "):
                shell.run_until(commands, mark.removeprefix("run until: "))
            elif mark == "run":
                wait_for_samples(tmp_path, LINES)
                answers.append(shell.run(commands))
    finally:
        statuses = shell.end()
    assert statuses == [0, 0]
    assert re.match(r'\{"probabilities":\[0\.\d+\],"version":\{.*"snapshot":', answers[-1]), answers[-1]


def wait_for_samples(place: Path, samples: int) -> None:
    """A reader waits, too, until the events are trained."""
    (journal,) = place.glob("runs/*/journal")
    deadline = time.monotonic() + WAIT_SECONDS
    while (trained := read_history(journal).samples) < samples:
        assert time.monotonic() < deadline, f"{trained} of {samples} events were trained"
        time.sleep(0.05)
