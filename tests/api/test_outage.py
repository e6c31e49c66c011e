"""A database that is killed: what is live goes on, changes wait, and everything is there afterwards."""

import time
from dataclasses import replace
from pathlib import Path

from tests.api.dispatcher import PretendDispatcher
from tests.api.serving import Answered, Served, serving, until
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
        until(lambda: api.get("/v1/runs/r").json["is_live"])  # a status may come late, and is not from the database
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
        assert done.json["cursor"] == dispatcher.journal.cursor
        until(lambda: api.get("/v1/runs/r").json["cursor"] == dispatcher.journal.cursor)
        until(lambda: api.get("/v1/runs/r/commands").json["items"][0]["state"] == "done")


def test_a_client_that_never_stops_asking_is_served_when_the_database_is_back(tmp_path: Path) -> None:
    """The API is started anew and the database killed between 202 and the answer: nobody's token has been seen."""
    with running_postgres() as postgres, PretendDispatcher(tmp_path / "r") as dispatcher:
        database = postgres.new_database()

        def change(api: Served) -> Answered:
            time.sleep(0.1)
            return api.ask("PUT", "/v1/runs/r/alpha", {"value": 0.5}, Idempotency_Key="k")

        with serving(tmp_path, database) as before:
            until(lambda: before.get("/v1/runs/r").json.get("is_live"))
            dispatcher.answers.clear()
            assert change(before).status == 202
        with serving(tmp_path, database) as started:
            api = replace(started, token=before.token)
            postgres.kill()
            assert change(api).status == 503
            postgres.start()
            dispatcher.answers.set()
            assert until(lambda: (told := change(api)).status == 200 and told).json["state"] == "done"
