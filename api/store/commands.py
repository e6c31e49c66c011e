"""Commands on their way to the journal.

A command is stored as pending, sent until it is answered, and done once it is in the journal, no matter which process
received the answer. Its id is sent with it, so the dispatcher carries it out once even if it is sent repeatedly.
"""

import hashlib
import time
import uuid
from dataclasses import asdict

import msgspec
from sqlalchemy import func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from api.store.rows import CommandState, NewCommand, StoredCommand
from api.store.tables import CommandRow
from dispatch.commands.protocol import Outcome
from infra.web.errors import KeyReused
from infra.web.store.engine import Database
from infra.web.store.paging import columns, read_page, to_row
from infra.web.store.rows import Page
from infra.web.store.values import plain

TICK_SECONDS = 1e-6
"""Least difference between the times of two commands of a run: times give their order even if the clock is set back."""


class CommandTable:
    """Commands, each with an id that makes the dispatcher carry it out only once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def submit(self, wanted: NewCommand) -> StoredCommand:
        """Stores a command as pending, and returns it; a repetition returns the command that was stored first.

        A command is repeated if run, actor, key and content are the same; raises KeyReused if only its content differs.
        """
        wanted = NewCommand(**plain(asdict(wanted)))
        try:
            async with self._database.writing() as connection:
                return await _find(connection, wanted) or await _enter(connection, wanted)
        except IntegrityError:  # another process stored it at the same moment
            async with self._database.reading() as connection:
                found = await _find(connection, wanted)
            if found is None:
                raise
            return found

    async def pending(self, run: str | None = None, limit: int = 1000) -> tuple[StoredCommand, ...]:
        """Commands that have not been answered, of one run or of all, oldest first."""
        query = columns(StoredCommand, CommandRow).where(CommandRow.state == "pending")
        if run is not None:
            query = query.where(CommandRow.run == run)
        async with self._database.reading() as connection:
            found = await connection.execute(query.order_by(CommandRow.created_at, CommandRow.id).limit(limit))
            return tuple(to_row(StoredCommand, row) for row in found)

    async def record_answer(
        self, command_id: str, outcome: Outcome, text: str, cursor: int | None = None
    ) -> StoredCommand | None:
        """Stores the answer unless there is one; returns the command afterwards, or None if there is none with that id.

        ``cursor`` is that of the command in the journal.
        """
        state: CommandState = "done" if outcome == "accepted" else "refused"
        answer = {"state": state, "outcome": outcome, "text": plain(text), "cursor": cursor, "done_at": time.time()}
        async with self._database.writing() as connection:
            await connection.execute(
                update(CommandRow).where(CommandRow.id == command_id, CommandRow.state == "pending").values(answer)
            )
            return await _get(connection, command_id)

    async def get(self, command_id: str) -> StoredCommand | None:
        async with self._database.reading() as connection:
            return await _get(connection, command_id)

    async def list(self, run: str, after: str | None = None, limit: int = 100) -> Page[StoredCommand]:
        """Newest first."""
        key = [CommandRow.created_at, CommandRow.id]
        query = columns(StoredCommand, CommandRow).where(CommandRow.run == run)
        async with self._database.reading() as connection:
            return await read_page(connection, StoredCommand, query, key, after, limit)


async def _find(connection: AsyncConnection, wanted: NewCommand) -> StoredCommand | None:
    """The command with the same key; raises KeyReused if its content differs."""
    query = (
        columns(StoredCommand, CommandRow)
        .add_columns(CommandRow.digest)
        .where(CommandRow.run == wanted.run, CommandRow.actor == wanted.actor, CommandRow.key == wanted.key)
    )
    found = (await connection.execute(query)).one_or_none()
    if found is None:
        return None
    *values, digest = found
    if digest != digest_of(wanted):
        raise KeyReused(
            f"the idempotency key {wanted.key!r} was used for another command of run {wanted.run}; expected the same "
            "content; choose a new key for a new command"
        )
    return StoredCommand(*values)


async def _enter(connection: AsyncConnection, wanted: NewCommand) -> StoredCommand:
    newest = await connection.scalar(select(func.max(CommandRow.created_at)).where(CommandRow.run == wanted.run))
    created_at = max(time.time(), (newest or 0.0) + TICK_SECONDS)
    new = StoredCommand(
        id=uuid.uuid4().hex,
        **asdict(wanted),
        state="pending",
        outcome=None,
        text="",
        cursor=None,
        created_at=created_at,
        done_at=None,
    )
    await connection.execute(insert(CommandRow).values(**asdict(new), digest=digest_of(wanted)))
    return new


async def _get(connection: AsyncConnection, command_id: str) -> StoredCommand | None:
    query = columns(StoredCommand, CommandRow).where(CommandRow.id == command_id)
    found = (await connection.execute(query)).one_or_none()
    return None if found is None else to_row(StoredCommand, found)


def digest_of(wanted: NewCommand) -> str:
    """Digest of a command's content, which distinguishes a repetition from a different command."""
    content = [wanted.verb, wanted.worker, wanted.value, wanted.expected, wanted.reason]
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()
