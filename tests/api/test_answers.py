"""How the outcome of a command is answered."""

import pytest

from api.routes.common import answer_command
from api.store.rows import StoredCommand
from dispatch.commands.protocol import Outcome


@pytest.mark.parametrize(("outcome", "status"), [("refused", 409), ("outdated", 412), ("accepted", 200), (None, 202)])
def test_the_status_of_an_answer_follows_from_the_outcome_whatever_the_text_says(
    outcome: Outcome | None, status: int
) -> None:
    stored = StoredCommand(
        id="k",
        run="r",
        key="k",
        verb="pause",
        worker="",
        value="",
        expected=-1,
        actor="ann",
        reason="",
        state="pending" if outcome is None else "done" if outcome == "accepted" else "refused",
        outcome=outcome,
        text="outdated: says the text alone",
        cursor=None,
        created_at=1.0,
        done_at=None,
    )
    assert answer_command(stored).status_code == status
