"""Code that routes share: names in paths, ETags, pages, and giving commands."""

import gzip
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.datastructures import URL

from api.models.runs import CommandReading
from api.parts import Parts
from api.runs.followed import FollowedRun
from api.store.rows import NewCommand, StoredCommand
from dispatch.commands.spec import CommandSpec
from infra.base.config import NAME_PATTERN
from infra.base.faults import reach
from infra.web.answers import Listed
from infra.web.errors import BadRequest, Conflict, CursorOutdated, HttpError, NotFound, Unprocessable
from infra.web.problems import answer_of
from infra.web.rules import Acting, Actor
from infra.web.store.rows import Page

SETTLE_SECONDS = 2.0
"""How long a request waits for its command to be carried out."""
MOST_LISTED = 1000
LONG_BYTES = 16_384
"""Length of an answer that is worth compressing."""
NEAR = ("127.0.0.1", "::1")

RowT = TypeVar("RowT")
ItemT = TypeVar("ItemT")
RunName = Annotated[str, Path(pattern=NAME_PATTERN, max_length=64, description="name of the run", examples=["clicks"])]
WorkerName = Annotated[str, Path(pattern=NAME_PATTERN, max_length=64, description="its name", examples=["worker-3"])]
After = Annotated[str | None, Query(max_length=200, description="next of the page before")]
Limit = Annotated[int, Query(ge=1, le=MOST_LISTED, description="most items of a page")]

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="one key, one effect: a request sent again with it is answered as before",
    ),
]


async def followed(run: RunName, parts: Parts) -> FollowedRun:
    """The run that a path names; raises NotFound."""
    return parts.runs.get(run)


Followed = Annotated[FollowedRun, Depends(followed)]


async def known(run: RunName, parts: Parts, response: Response) -> str:
    """The name of a run whose folder is here, or whose history is still in the database; raises NotFound."""
    stored = None if run in parts.runs else await parts.store.runs.get(run)
    cursor = parts.runs.get(run).cursor if stored is None else stored.cursor  # there may be a folder by now
    response.headers["ETag"] = etag(cursor)
    return run


Known = Annotated[str, Depends(known)]


def etag(cursor: int) -> str:
    return f'"{cursor}"'


def listed(page: Page[RowT], read: Callable[[RowT], ItemT], request: Request, response: Response) -> Listed[ItemT]:
    """Converts a page of rows to an answer, with a link to the next page."""
    link_next(page.next, request, response)
    return Listed(items=[read(row) for row in page.rows], next=page.next)


def link_next(following: str | None, request: Request, response: Response) -> None:
    """Adds a Link header that points to the next page, if there is one."""
    if following is not None:
        link = URL(scope=request.scope).include_query_params(after=following)
        response.headers["Link"] = f'<{link.path}?{link.query}>; rel="next"'


def history_answer(body: bytes, request: Request, headers: Mapping[str, str]) -> Response:
    """Answers with JSON; a long one is compressed, unless the client is on this machine, where it costs more time."""
    sent = dict(headers)
    accepted = request.headers.get("accept-encoding", "")
    is_near = request.client is not None and request.client.host in NEAR
    if len(body) >= LONG_BYTES and "gzip" in accepted and not is_near:
        body = gzip.compress(body, compresslevel=1)
        sent["Content-Encoding"] = "gzip"
    return Response(body, headers=sent | {"Vary": "Accept-Encoding"}, media_type="application/json")


# ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Conditions:
    """What a client states about a command besides its content."""

    actor: Actor
    key: str
    """Its idempotency key, or a new one."""
    expected: int
    """Cursor that the command is based on; -1: any."""


async def conditions_of(
    actor: Acting,
    idempotency_key: IdempotencyKey = None,
    if_match: Annotated[
        str | None,
        Header(
            max_length=40,
            pattern=r'^(\*|"[0-9]{1,18}")$',
            description="ETag of what the change is based on: 412 if somebody changed something since",
        ),
    ] = None,
) -> Conditions:
    expected = -1 if if_match in (None, "*") else int(str(if_match).strip('"'))
    return Conditions(actor, idempotency_key or uuid.uuid4().hex, expected)


Given = Annotated[Conditions, Depends(conditions_of)]

COMMAND_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"model": CommandReading, "description": "The command has been carried out and is in the journal"},
    202: {"model": CommandReading, "description": "The command will be carried out; Location says where to look"},
}


PROBLEMS: dict[str, type[HttpError]] = {"refused": Conflict, "outdated": CursorOutdated}
"""The error that a command which was not carried out is answered with, by its outcome."""


async def give(parts: Parts, run: FollowedRun, given: Conditions, command: CommandSpec, reason: str = "") -> Response:
    """Gives a command to the dispatcher; waits a short time for it and answers with its result.

    Raises Unprocessable if the command names code of another package and the settings do not allow that.
    """
    if command.names_plugin and not parts.plugins:
        raise Unprocessable(
            f"{command.name} {str(command)!r} is a plug-in; expected one that Freshet comes with; start the control "
            "plane with --set api.plugins=true to allow others"
        )
    return await enter(parts, run, given, command.name, worker=command.about, value=str(command), reason=reason)


async def enter(
    parts: Parts, run: FollowedRun, given: Conditions, verb: str, *, worker: str, value: str, reason: str
) -> Response:
    """Stores a command, waits a short time for its effect, and answers with its result."""
    wanted = NewCommand(
        run=run.place.name,
        verb=verb,
        key=given.key,
        actor=given.actor.name,
        worker=worker,
        value=value,
        expected=given.expected,
        reason=reason,
    )
    stored = await parts.store.commands.submit(wanted)
    if stored.state == "pending":
        reach("command_stored")
        await run.outbox.settled(stored.id, SETTLE_SECONDS)
        stored = await parts.store.commands.get(stored.id) or stored  # another API process may have recorded the answer
    return answer_command(stored)


def answer_command(stored: StoredCommand) -> Response:
    reading = CommandReading.model_validate(stored).model_dump()
    if stored.outcome in PROBLEMS:
        return answer_of(PROBLEMS[stored.outcome](stored.text), {"command": reading})
    if stored.outcome is None:
        where = f"/v1/runs/{stored.run}/commands/{stored.id}"
        return JSONResponse(reading, 202, {"Location": where, "Retry-After": "1"})
    headers = {} if stored.cursor is None else {"ETag": etag(stored.cursor)}
    return JSONResponse(reading, 200, headers)


def check_ids(names: Iterable[str], name: str, what: str) -> None:
    """Raises NotFound if a name is not one of these."""
    if name not in names:
        raise NotFound(f"there is no {what} {name!r}; expected one of {', '.join(sorted(names)) or 'none'}")


def page_of(items: Sequence[RowT], after: str | None, limit: int) -> Page[RowT]:
    """One page of a list in memory; ``after`` is the number of items to skip."""
    try:
        start = int(after or 0)
    except ValueError as error:
        raise BadRequest(f"after is {after!r}; expected next of the page before") from error
    end = start + limit
    return Page(tuple(items[start:end]), str(end) if end < len(items) else None)
