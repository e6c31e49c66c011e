"""A database that is killed: what is live goes on, changes wait, and everything is there afterwards."""

from pathlib import Path

from tests.api.dispatcher import PretendDispatcher
from tests.api.serving import serving, until
from tests.databases import running_postgres


def test_while_the_database_is_away_reads_go_on_and_writes_are_503(tmp_path: Path) -> None:
    with (
        running_postgres() as postgres,
        PretendDispatcher(tmp_path / "r") as dispatcher,
        serving(tmp_path, postgres.new_database()) as api,
    ):
        until(lambda: api.get("/v1/runs/r/generations").json["items"])
        postgres.kill()
        assert api.ask("GET", "/readyz", token=None).status == 503
        assert api.get("/v1/runs/r").json["is_live"]
        assert api.get("/v1/runs/r/alpha").status == 200
        assert api.get("/v1/runs/r/generations").status == 503
        refused = api.ask("PUT", "/v1/runs/r/alpha", {"value": 0.5}, Idempotency_Key="k")
        assert (refused.status, refused.headers["Content-Type"]) == (503, "application/problem+json")
        dispatcher.train(1, 3)
        postgres.start()
        done = until(
            lambda: (
                (told := api.ask("PUT", "/v1/runs/r/alpha", {"value": 0.5}, Idempotency_Key="k")).status == 200 and told
            )
        )
        assert done.json["version"] == dispatcher.journal.version
        until(lambda: api.get("/v1/runs/r").json["version"] == dispatcher.journal.version)
        until(lambda: api.get("/v1/runs/r/commands").json["items"][0]["state"] == "done")
