"""The end of a run, which its dispatcher writes and then is gone, reaches the database all the same."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from api.runs import projector
from api.runs.places import Place
from api.runs.projector import Projector
from api.store.rows import ProjectedJournal, StoredRun
from api.store.store import SqlStore
from dispatch.errors import CommandRefused
from dispatch.feed.client import read_feed
from dispatch.feed.page import FeedPage
from dispatch.journal.history import JOURNAL
from dispatch.journal.log import identity_of
from dispatch.journal.run import RunJournal
from tests.api.dispatcher import PretendDispatcher
from tests.api.serving import serving
from tests.dispatch.journal.test_checkpoint_segments import step
from tests.dispatch.journal.test_run import begun_in, job_in


def written(folder: Path, *, is_stopped: bool, steps: int = 1) -> int:
    """The end of a journal that nobody writes any more."""
    journal = RunJournal(job_in(folder))
    begun_in(journal)
    for number in range(1, steps + 1):
        journal.append_step(step(number))
    if is_stopped:
        journal.stop("asked to", steps, 0, "")
    journal.close()
    return journal.cursor


def finished(folder: Path) -> StoredRun | None:
    async def finish() -> StoredRun | None:
        store = await SqlStore.open(f"sqlite:///{folder / 'freshet.db'}")
        try:
            await Projector(store, Place("r", folder, {})).finish()
            return await store.runs.get("r")
        finally:
            await store.close()

    return asyncio.run(finish())


def test_a_run_that_was_stopped_is_projected_to_its_end_without_a_dispatcher(tmp_path: Path) -> None:
    cursor = written(tmp_path, is_stopped=True)
    found = finished(tmp_path)
    assert found is not None
    assert (found.state, found.cursor) == ("stopped", cursor)


def test_a_run_that_was_interrupted_waits_for_its_dispatcher(tmp_path: Path) -> None:
    written(tmp_path, is_stopped=False)
    assert finished(tmp_path) is None


def test_what_is_left_of_a_long_run_comes_in_few_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor = written(tmp_path, is_stopped=True, steps=20)
    monkeypatch.setattr(projector, "PAGE_RECORDS", 8)
    at = ProjectedJournal(identity_of(tmp_path / JOURNAL), 1)
    pages = list(projector.read_rest(tmp_path / JOURNAL, at))
    assert [page.after for page in pages] == [1, *(page.next for page in pages[:-1])]
    assert (len(pages), pages[-1].next) == (3, cursor)


def test_an_api_that_ends_waits_for_no_dispatcher_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = threading.Event()

    def ask(**named: Any) -> FeedPage:
        asking.set()
        return read_feed(**named)

    monkeypatch.setattr(projector, "FEED_SECONDS", 3600.0)
    monkeypatch.setattr(projector, "read_feed", ask)
    with PretendDispatcher(tmp_path / "r"):
        pass
    with serving(tmp_path, f"sqlite:///{tmp_path / 'freshet.db'}"):
        asking.wait()


def test_a_dispatcher_that_gives_out_no_journal_is_told_of_and_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Semaphore(0)

    def refuse(**named: Any) -> FeedPage:
        asked.release()
        raise CommandRefused("cursor 7 is not in the journal, which ends at cursor 1")

    monkeypatch.setattr(projector, "read_feed", refuse)
    monkeypatch.setattr(projector, "PAUSE_SECONDS", 0.01)
    database = f"sqlite:///{tmp_path / 'freshet.db'}"
    with PretendDispatcher(tmp_path / "r"), capture_logs() as logs, serving(tmp_path, database):
        assert all(asked.acquire(timeout=60) for _ in range(5))
    told = [line for line in logs if line["event"] == "the dispatcher gives out no journal"]
    assert "cursor 7" in told[0]["reason"]
    assert told[0]["log_level"] == "warning"
