"""An agent that starts runs, as a real process: asked over a real API, with the processes of a real run."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from dispatch.journal.occupied import RUN_LOCK, is_under_way
from infra.base.errors import ConfigError
from infra.base.files import try_lock
from infra.run.agent.starting import check_plugins
from infra.run.settings import load_settings
from infra.run.supervision.nursery import as_started
from tests.api.serving import Served, serving, until
from tests.end_to_end.processes import start, wait_until

SMALL = ("dispatch.workers=1", "ps.shards=1", "stream.schema_name=movielens")


@contextmanager
def agent_of(runs: Path, log: Path) -> Iterator[subprocess.Popen[str]]:
    """An agent that listens; it is ended with the context if the test has not done so, its runs first."""
    common = [part for setting in (*SMALL, f"stream.folder={log}") for part in ("--set", setting)]
    agent = start("agent", "--runs", str(runs), *common)
    try:
        wait_until((runs / "endpoints" / "agent").exists, agent)
        yield agent
    finally:
        if agent.poll() is None:
            agent.terminate()
            agent.communicate(timeout=100)


def test_a_run_is_started_once_goes_on_after_a_stop_and_stops_with_its_agent(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with (
        agent_of(runs, tmp_path / "log") as agent,
        serving(runs, f"sqlite:///{tmp_path / 'freshet.db'}") as served,
    ):
        asked = {"name": "clicks", "settings": {"stream.batch": "64"}}
        assert [served.ask("POST", "/v1/runs", asked).status for _ in range(2)] == [202, 202]
        other = served.ask("POST", "/v1/runs", {"name": "clicks", "settings": {}})
        assert (other.status, "asked for before with other settings" in other.json["detail"]) == (409, True)
        own = served.ask("POST", "/v1/runs", {"name": "b", "settings": {"folder": "/elsewhere"}})
        assert (own.status, "are the agent's to decide" in own.json["detail"]) == (409, True)
        assert states_until_live(served, "clicks") <= {"not available", "starting", "waiting", "training"}
        with suspended(agent, runs / "clicks"):
            assert served.ask("POST", "/v1/runs/clicks/stop").status == 200
            ending = served.ask("POST", "/v1/runs", asked)
            assert (ending.status, "is stopping" in ending.json["detail"]) == (409, True)
        until(lambda: not is_under_way(runs / "clicks"))
        late = served.ask("POST", "/v1/runs/clicks/pause")
        assert (late.status, "is stopped" in late.json["detail"]) == (409, True)
        until(lambda: served.ask("POST", "/v1/runs", asked).status == 202)
        wait_until(lambda: is_under_way(runs / "clicks"), agent)
        agent.send_signal(signal.SIGTERM)
        output, _ = agent.communicate(timeout=100)
    assert (agent.returncode, "Traceback" in output) == (0, False)
    assert not is_under_way(runs / "clicks")
    assert not (runs / "b").exists()


def test_a_run_whose_agent_was_killed_is_found_by_the_next_one_and_not_started_twice(tmp_path: Path) -> None:
    runs, clicks = tmp_path / "runs", tmp_path / "runs" / "clicks"
    (runs / "requests").mkdir(parents=True)
    (runs / "requests" / "clicks.json").write_text("{}")
    clicks.mkdir()
    with (
        running_supervisor(clicks),
        agent_of(runs, tmp_path / "log") as agent,
        serving(runs, f"sqlite:///{tmp_path / 'freshet.db'}") as served,
    ):
        assert served.ask("POST", "/v1/runs", {"name": "clicks", "settings": {}}).status == 202
        assert served.ask("POST", "/v1/runs", {"name": "clicks", "settings": {"seed": "1"}}).status == 409
        agent.send_signal(signal.SIGTERM)
        output, _ = agent.communicate(timeout=100)
    assert "run 'clicks' is under way without this agent" in " ".join(output.split())
    assert not (clicks / "logs").exists()


def states_until_live(served: Served, run: str) -> set[str]:
    """What is told of a run while it starts: it is never said that there is none."""
    states: set[str] = set()

    def is_live() -> bool:
        answer = served.get(f"/v1/runs/{run}")
        assert answer.status in (200, 503), answer.body
        states.add(answer.json["state"] if answer.status == 200 else "not available")
        return answer.status == 200 and bool(answer.json["is_live"])

    until(is_live)
    return states


@contextmanager
def suspended(agent: subprocess.Popen[str], folder: Path) -> Iterator[None]:
    """Meanwhile a run does not end, however little it has left to do: its supervisor is stopped."""
    started = [(each, as_started(each.cmdline())) for each in psutil.Process(agent.pid).children(recursive=True)]
    (supervisor,) = (each for each, argv in started if "up" in argv and str(folder) in " ".join(argv))
    supervisor.suspend()
    try:
        yield
    finally:
        supervisor.resume()


@contextmanager
def running_supervisor(folder: Path) -> Iterator[None]:
    """Another process holds the lock of a run, as its supervisor does."""
    held = try_lock(folder / RUN_LOCK)
    assert held is not None
    try:
        yield
    finally:
        os.close(held)


@pytest.mark.parametrize("setting", ["model.name", "dispatch.policy", "stream.source"])
def test_a_request_may_name_a_plug_in_only_if_the_agent_allows_it(setting: str) -> None:
    asked = {setting: "json:JSONDecoder"}
    found = load_settings(None, [f"{setting}=json:JSONDecoder"])
    with pytest.raises(ConfigError, match=rf"{setting} = 'json:JSONDecoder' is a plug-in; .* --set api\.plugins=true"):
        check_plugins(found, asked)
    check_plugins(found, {"dispatch.workers": "2"})  # then it is the agent's own choice
    check_plugins(load_settings(None, [f"{setting}=json:JSONDecoder", "api.plugins=true"]), asked)
