"""An agent that starts runs, as a real process: asked over a real API, with the processes of a real run."""

import signal
from pathlib import Path

from infra.run.folder import is_under_way
from tests.api.serving import serving, until
from tests.end_to_end.processes import start, wait_until

SMALL = ("dispatch.workers=1", "ps.shards=1", "stream.schema_name=movielens")


def test_a_run_is_started_once_goes_on_after_a_stop_and_stops_with_its_agent(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    common = [part for setting in (*SMALL, f"stream.folder={tmp_path}/log") for part in ("--set", setting)]
    agent = start("agent", "--runs", str(runs), *common)
    wait_until((runs / "endpoints" / "agent").exists, agent)
    with serving(runs, f"sqlite:///{tmp_path / 'freshet.db'}") as served:
        asked = {"name": "clicks", "settings": {"stream.batch": "64"}}
        assert [served.ask("POST", "/v1/runs", asked).status for _ in range(2)] == [202, 202]
        other = served.ask("POST", "/v1/runs", {"name": "clicks", "settings": {}})
        assert (other.status, "asked for before with other settings" in other.json["detail"]) == (409, True)
        own = served.ask("POST", "/v1/runs", {"name": "b", "settings": {"folder": "/elsewhere"}})
        assert (own.status, "are the agent's to decide" in own.json["detail"]) == (409, True)
        wait_until((runs / "clicks" / "endpoints" / "dispatcher").exists, agent)
        until(lambda: served.get("/v1/runs/clicks").json.get("is_live"))
        assert is_under_way(runs / "clicks")
        assert served.ask("POST", "/v1/runs/clicks/stop").status == 200
        until(lambda: not is_under_way(runs / "clicks"))
        until(lambda: served.ask("POST", "/v1/runs", asked).status == 202 and is_under_way(runs / "clicks"))
    agent.send_signal(signal.SIGTERM)
    output, _ = agent.communicate(timeout=100)
    assert (agent.returncode, "Traceback" in output) == (0, False)
    assert not is_under_way(runs / "clicks")
    assert not (runs / "b").exists()
