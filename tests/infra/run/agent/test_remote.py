"""An agent with workers alone: real processes in place of ``freshet worker``."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from infra.base.errors import ProcessFailed
from infra.base.link_gbit import LinkGbit
from infra.base.process import Stop
from infra.run.agent import remote
from infra.run.agent.remote import AgentJob, remote_worker, run_agent
from infra.run.settings import STORED, Settings, load_settings
from infra.run.supervision.child import ProcessSpec


def job(folder: Path, workers: int = 2) -> AgentJob:
    return AgentJob(load_settings(folder=folder), "tcp://10.0.0.4:5500", "edge-", [LinkGbit.of(0.5)] * workers)


def stand_in(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Has every worker run this code instead; its name is its first argument."""

    def instead(settings: Settings, dispatcher: str, name: str, link: LinkGbit) -> ProcessSpec:
        spec = remote_worker(settings, dispatcher, name, link)
        argv = [sys.executable, "-c", code, name, str(settings.folder)]
        return replace(spec, argv=argv, endpoint_file=None, max_restarts=1, backoff_seconds=0.01)

    monkeypatch.setattr(remote, "remote_worker", instead)


def test_a_remote_worker_joins_the_dispatcher_with_the_agent_s_settings(tmp_path: Path) -> None:
    settings = load_settings(folder=tmp_path)
    spec = remote_worker(settings, "tcp://10.0.0.4:5500", "edge-0", LinkGbit(0.5, 0.05))
    told = " ".join(spec.argv if not callable(spec.argv) else ())
    for part in (f"--run {tmp_path}", "--name edge-0", "--dispatcher tcp://10.0.0.4:5500", "--link 0.5 --uplink 0.05"):
        assert part in told
    assert (spec.restart, spec.essential, spec.needs) == ("on_failure", False, ())


def test_an_agent_ends_when_its_workers_have_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "import sys; print('left', sys.argv[1])")
    assert run_agent(job(tmp_path), Stop(), print).reason == "finished"
    assert [(tmp_path / "logs" / f"edge-{number}.log").read_text() for number in range(2)] == [
        *("left edge-0\n", "left edge-1\n")
    ]
    assert (tmp_path / STORED).exists()


def test_a_worker_that_fails_is_restarted_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flaky = (
        "import pathlib, sys\nonce = pathlib.Path(sys.argv[2], 'once')\n"
        "if not once.exists(): once.touch(); sys.exit('freshet: no such row')"
    )
    stand_in(monkeypatch, flaky)
    lines: list[str] = []
    assert run_agent(job(tmp_path, workers=1), Stop(), lines.append).restarts == {"edge-0": 1}
    assert lines == ["edge-0 was restarted (ended with status 1: no such row)"]


def test_a_worker_that_fails_for_good_is_the_agent_s_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "import sys; sys.exit('no such model')")
    with pytest.raises(ProcessFailed, match=r"'edge-0' ended with status 1, restarted 1 time(.|\n)*no such model"):
        run_agent(job(tmp_path, workers=1), Stop(), print)
