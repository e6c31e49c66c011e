"""Commands to a run that nobody carries on: refused where it was stopped or is over, kept where it was interrupted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.journal.run import RunJournal
from infra.base.files import try_lock
from tests.api.dispatcher import RUN, write_settings
from tests.api.serving import Served, serving, until
from tests.dispatch.journal.test_run import begun_in, job_in


def left(folder: Path, how: str) -> None:
    """The folder of a run that is not under way."""
    folder.mkdir()
    journal = RunJournal(job_in(folder))
    begun_in(journal)
    if how == "stopped":
        journal.stop("asked to", 1, 0, "")
    elif how == "ended":
        journal.end("all is trained", 1, 0, "")
    journal.close()
    write_settings(folder)


@pytest.fixture
def api(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    left(tmp_path / RUN, request.param)
    with serving(tmp_path, f"sqlite:///{tmp_path / 'freshet.db'}") as served:
        until(lambda: served.get(f"/v1/runs/{RUN}").status == 200)
        yield served


@pytest.mark.parametrize(
    ("api", "why"), [("stopped", "is stopped; expected one that is under way"), ("ended", "is over")], indirect=["api"]
)
def test_a_command_to_a_run_that_is_at_rest_is_a_conflict(api: Served, why: str) -> None:
    answer = api.ask("POST", f"/v1/runs/{RUN}/pause", Idempotency_Key="k")
    assert (answer.status, why in answer.json["detail"]) == (409, True)
    assert answer.json["command"]["state"] == "refused"
    again = api.ask("POST", f"/v1/runs/{RUN}/pause", Idempotency_Key="k")
    assert again.json["command"]["id"] == answer.json["command"]["id"]


@pytest.mark.parametrize("api", ["interrupted"], indirect=True)
def test_a_command_to_a_run_that_was_interrupted_waits_for_it(api: Served) -> None:
    assert api.ask("POST", f"/v1/runs/{RUN}/pause").status == 202


@pytest.mark.parametrize("api", ["stopped"], indirect=True)
def test_a_command_to_a_run_that_is_being_resumed_waits_for_it(api: Served, tmp_path: Path) -> None:
    held = try_lock(tmp_path / RUN / "run.lock")
    assert held is not None
    assert api.ask("POST", f"/v1/runs/{RUN}/pause").status == 202
