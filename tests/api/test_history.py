"""What REST tells of a run's past is what its journal says: every list, page by page, against a fold of the files."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from api.routes.events import shown_record
from dispatch.errors import DispatchError
from dispatch.journal.history import JOURNAL
from dispatch.journal.log import JournalTail
from dispatch.journal.records import CheckpointTaken
from dispatch.journal.run import RunJournal
from ingest.streams.position import Position
from tests.api.dispatcher import PretendDispatcher
from tests.api.serving import Served, until
from tests.api.store.journals import Frame, Reference, Row, commanded, figures
from tests.api.test_routes import events
from tests.dispatch.journal.test_checkpoint_segments import step
from tests.dispatch.journal.test_run import TERMS

STEPS = 40


def trained(journal: RunJournal, first: int, last: int) -> None:
    for number in range(first, last + 1):
        journal.append_step(step(number))
        journal.complete(number, np.zeros(2, np.float32), figures(number, loss=number / 8))


@pytest.fixture(scope="module")
def reference(api: Served, dispatcher: PretendDispatcher) -> Reference:
    """Of a run that has been through everything, once SQL has it."""
    journal = dispatcher.journal
    trained(journal, 1, 20)
    for number in (1, 2):
        journal.begin_checkpoint(number, 20, {0: Position(20)}, 40)
        journal.take_checkpoint(CheckpointTaken(number, 20, {0: Position(20)}, 40, 70.0))
    trained(journal, 21, 30)
    journal.begin_checkpoint(3, 30, {0: Position(30)}, 60)
    for text in ("gone", "gone again"):
        journal.fault(30, DispatchError(text))
    journal.redecide(2, 20)
    journal.start_generation([], None, TERMS, 2)
    trained(journal, 21, STEPS)
    journal.steer(commanded("c0"))
    until(lambda: [point["steps"] for point in api.get("/v1/runs/r/steps?points=1").json["items"]] == [STEPS])
    frames: list[Frame] = [together for _, together in JournalTail(dispatcher.folder / JOURNAL, 0).read(journal.cursor)]
    return Reference().fold(frames)


def everything(api: Served, path: str) -> Iterator[Row]:
    """The items of all pages."""
    following: str | None = ""
    while following is not None:
        page = api.get(f"{path}{'&' if '?' in path else '?'}limit=3{following and f'&after={following}'}").json
        yield from page["items"]
        following = page["next"]


def test_steps_are_those_of_the_journal(api: Served, reference: Reference) -> None:
    told = list(everything(api, "/v1/runs/r/steps?points=1000"))
    expected = [row | {"loss": row["loss"] / row["samples"]} for _, row in sorted(reference.steps.items())]
    assert told == [pytest.approx(row) for row in expected]
    assert [row["last_step"] for row in told] == list(range(1, STEPS + 1))
    (whole,) = api.get("/v1/runs/r/steps?points=1").json["items"]
    assert (whole["first_step"], whole["last_step"], whole["steps"]) == (1, STEPS, STEPS)
    assert whole["clicks"] == sum(row["clicks"] for row in expected)


@pytest.mark.parametrize("kind", ["checkpoints", "faults", "generations"])
def test_lists_are_those_of_the_journal_newest_first(api: Served, reference: Reference, kind: str) -> None:
    found: Any = getattr(reference, kind)
    rows = [row for _, row in sorted(found.items())] if isinstance(found, dict) else found
    assert len(rows) > 1
    told = [row if "place" not in row else {n: v for n, v in row.items() if n != "place"} for row in reversed(rows)]
    assert list(everything(api, f"/v1/runs/r/{kind}")) == [row | {"version": row["cursor"]} for row in told]


def test_events_are_the_records_of_the_journal_but_steps(api: Served, reference: Reference) -> None:
    told = events(api, "/v1/runs/r/events?after=0", len(reference.events))
    expected = [
        (
            f"{row['cursor']}.{row['place']}",
            {"cursor": row["cursor"], "version": row["cursor"], "at": row["at"], **shown_record(row["body"])},
        )
        for row in reference.events
    ]
    assert [(number, json.loads(body)) for number, body in told] == expected
