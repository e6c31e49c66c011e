"""Runs a command inside the test's process, which spares it the seconds that imports take."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from infra.base.process import stop_on_signals
from infra.cli.main import run_command
from tests.end_to_end.processes import environment

Invoke = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Invoke]:
    """Runs a command to its end, as ``processes.run`` does; what it changes in the process is undone afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    configured = structlog.get_config()
    monkeypatch.setattr("os.environ", environment())
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        monkeypatch.setattr(sys, "argv", ["freshet", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run_command()
        told = capsys.readouterr()
        status = ended.value.code
        assert isinstance(status, int)
        return subprocess.CompletedProcess(sys.argv, status, told.out, told.err)

    yield run
    structlog.configure(**configured)
    stop_on_signals.cache_clear()
    for number, action in before.items():
        signal.signal(number, action)
