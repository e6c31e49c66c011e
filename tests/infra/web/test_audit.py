"""The audit trail: many entries in a transaction, none that a client must wait for in vain, none lost to a kill."""

import asyncio
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from infra.web import auditing
from infra.web.auditing import LEFT_OUT, MOST_REFUSED, STRANGERS_PER_SECOND, AuditQueue
from infra.web.errors import DatabaseAway
from infra.web.limits import RATE_SECONDS
from infra.web.store.audit import AuditTrail
from infra.web.store.engine import Database
from infra.web.store.rows import SCOPES, NewAudit, StoredAudit
from tests.api.dispatcher import PretendDispatcher
from tests.api.serving import Served, new_token, until
from tests.end_to_end.processes import start, wait_until


class ScriptedTrail:
    """Takes entries, unless it is told to fail."""

    def __init__(self) -> None:
        self.transactions: list[list[str]] = []
        self.error: Exception | None = None
        self.left_out = 0
        """requests that have no entry, as entries tell"""

    async def add(self, *entries: NewAudit) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.transactions.append([entry.action for entry in entries])
        self.left_out += sum(entry.detail["requests"] for entry in entries if entry.action == LEFT_OUT and entry.detail)

    @property
    def actions(self) -> list[str]:
        return [action for transaction in self.transactions for action in transaction]


def entry(action: str) -> NewAudit:
    return NewAudit("ann", action, 200, token="1")


def queued(use: Callable[[AuditQueue], Awaitable[None]], trail: ScriptedTrail) -> None:
    async def run() -> None:
        async with auditing.auditing(trail) as queue:  # type: ignore[arg-type]
            await use(queue)

    asyncio.run(run())


# ── the queue ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_entries_that_come_together_are_committed_together() -> None:
    trail = ScriptedTrail()

    async def use(queue: AuditQueue) -> None:
        await asyncio.gather(*(queue.record(entry(str(number))) for number in range(100)))
        assert trail.actions == [str(number) for number in range(100)]

    queued(use, trail)
    assert len(trail.transactions) <= 2


def test_an_entry_waits_for_a_database_that_is_away_longer_than_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    trail = ScriptedTrail()
    monkeypatch.setattr(auditing, "RECORD_SECONDS", 0.01)
    monkeypatch.setattr(auditing, "AGAIN_SECONDS", 0.01)

    async def use(queue: AuditQueue) -> None:
        trail.error = DatabaseAway("away")
        await queue.record(entry("early"))
        assert trail.actions == []
        trail.error = None
        await asyncio.wait_for(queue.record(entry("late")), 60)

    queued(use, trail)
    assert trail.actions == ["early", "late"]


def test_refusals_that_find_no_room_are_counted() -> None:
    trail = ScriptedTrail()

    async def use(queue: AuditQueue) -> None:
        for number in range(MOST_REFUSED + 7):
            queue.note_refusal(entry(str(number)))

    queued(use, trail)
    assert trail.actions == [*map(str, range(MOST_REFUSED)), LEFT_OUT]


def test_of_refusals_without_a_token_some_are_entered_and_the_others_counted_once_a_minute() -> None:
    """An hour of ten a second, on a clock of its own; a person's refusals are all entered meanwhile."""
    trail, now = ScriptedTrail(), 0.0
    stranger = NewAudit("", "stranger", 401)

    async def use() -> None:
        nonlocal now
        queue = AuditQueue(trail, lambda: now)  # type: ignore[arg-type]
        for second in range(3600):
            now = float(second)
            for _ in range(10):
                queue.note_refusal(stranger)
            queue.note_refusal(entry("person"))
            await queue.flush()
        queue.tell_left_out()
        await queue.flush()

    asyncio.run(use())
    counted = Counter(trail.actions)
    assert counted["person"] == 3600
    assert counted["stranger"] <= 3600 + RATE_SECONDS * STRANGERS_PER_SECOND
    assert counted[LEFT_OUT] <= 61
    assert trail.left_out == 36_000 - counted["stranger"]


def test_an_entry_that_sql_does_not_take_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    trail = ScriptedTrail()

    async def use(queue: AuditQueue) -> None:
        trail.error = ValueError("no such type")
        await queue.record(entry("bad"))
        trail.error = None
        await queue.record(entry("good"))

    queued(use, trail)
    assert trail.actions == ["good"]


# ── the API ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_client_that_asks_one_thing_after_the_other_is_never_one_too_many(api: Served) -> None:
    answers = [api.ask("PUT", "/v1/runs/nowhere/alpha", {"value": 0.5}).status for _ in range(500)]
    assert set(answers) == {404}


def audited(database: str) -> tuple[StoredAudit, ...]:
    async def read() -> tuple[StoredAudit, ...]:
        opened = Database(database)
        try:
            return (await AuditTrail(opened).list(limit=1000)).rows
        finally:
            await opened.close()

    return asyncio.run(read())


def test_what_was_answered_is_on_record_when_the_process_is_killed(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'freshet.db'}"
    token = new_token(database, SCOPES)
    with PretendDispatcher(tmp_path / "r"):
        for kill in range(1, 4):
            process = start("api", "--runs", tmp_path, "--set", "api.port=0", "--set", f"api.database={database}")
            try:
                answered = change_once(Served(address_of(tmp_path, process), token, database))
            finally:
                process.kill()
                process.communicate()
            assert answered == 200
            kept = [each for each in audited(database) if each.status == 200]
            assert (len(kept), kept[0].action) == (kill, "PUT /v1/runs/{run}/alpha")


def address_of(folder: Path, process: "subprocess.Popen[str]") -> str:
    """Of an API that has just been started; the file in which it says so is removed for the next one."""
    announced = folder / "endpoints" / "api"
    wait_until(announced.exists, process)
    address = announced.read_text()
    announced.unlink()
    return address


def change_once(served: Served) -> int:
    """Gives a command to a run that is live; returns the status of the answer."""
    until(lambda: served.get("/v1/runs/r").json.get("is_live"))
    return served.ask("PUT", "/v1/runs/r/alpha", {"value": 0.5}).status
