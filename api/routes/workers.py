"""Workers of a run: listing, adding, changing, draining and removing them."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec
from fastapi import APIRouter, Request, Response

from api.models.runs import AddWorker, ChangeWorker, Why, WorkerReading
from api.parts import Parts
from api.routes.common import (
    COMMAND_RESPONSES,
    After,
    Followed,
    Given,
    Limit,
    WorkerName,
    enter,
    etag,
    give,
    listed,
    page_of,
)
from api.runs.followed import FollowedRun
from dispatch.commands.desired import ShareLimits
from dispatch.commands.drain import DrainCommand, RemoveCommand
from dispatch.commands.link import LinkCommand
from dispatch.commands.protocol import ListedMember
from dispatch.commands.shares import SharesCommand
from dispatch.commands.supervision import ADD, ListedProcess
from dispatch.errors import CommandRefused, NoAnswer
from dispatch.progress.status import WorkerStatus
from infra.base.link_gbit import LinkGbit
from infra.web.answers import Listed
from infra.web.errors import Conflict
from infra.web.rules import needs

PREFIX = "worker-"
ANSWER_SECONDS = 1.0
"""How long a list waits for the answers of dispatcher and supervisor."""
AnyT = TypeVar("AnyT")
router = APIRouter(prefix="/v1/runs/{run}/workers", tags=["workers"])


@router.get("", summary="The workers of a run", **needs("read"))
async def list_workers(
    run: Followed, request: Request, response: Response, after: After = None, limit: Limit = 100
) -> Listed[WorkerReading]:
    """The workers that the dispatcher knows, including those that have left, then other workers that are supervised."""
    response.headers["ETag"] = etag(run.cursor)
    return listed(page_of(await _workers(run), after, limit), lambda worker: worker, request, response)


@router.post("", summary="Add a worker", responses=COMMAND_RESPONSES, **needs("control"))
async def add_worker(run: Followed, parts: Parts, given: Given, body: AddWorker) -> Response:
    """Starts it on the machine of the run's supervisor; it joins at the next step."""
    if run.place.agent() is None:
        raise Conflict(
            f"nobody supervises run {run.place.name!r}; expected a run of 'freshet up'; start the worker by hand"
        )
    link = "" if body.link_gbit is None else str(LinkGbit.of(body.link_gbit, body.uplink_gbit))
    return await enter(parts, run, given, ADD, worker=body.name or "", value=link, reason=body.reason)


@router.delete("/{worker}", summary="Remove a worker", responses=COMMAND_RESPONSES, **needs("control"))
async def remove_worker(run: Followed, worker: WorkerName, parts: Parts, given: Given) -> Response:
    """Excludes it without waiting: the others go back to the last checkpoint, and its process is stopped."""
    return await give(parts, run, given, RemoveCommand(worker))


@router.post("/{worker}/drain", summary="Have a worker leave", responses=COMMAND_RESPONSES, **needs("control"))
async def drain_worker(
    run: Followed, worker: WorkerName, parts: Parts, given: Given, body: Why | None = None
) -> Response:
    """It leaves after a checkpoint, at a step boundary, at no cost."""
    return await give(parts, run, given, DrainCommand(worker), body.reason if body else "")


@router.patch("/{worker}", summary="Change a worker", responses=COMMAND_RESPONSES, **needs("control"))
async def change_worker(run: Followed, worker: WorkerName, parts: Parts, given: Given, body: ChangeWorker) -> Response:
    """Changes the speed of its link, or how much of a batch it may get."""
    if body.shares is not None:
        limits = ShareLimits(body.shares.least, body.shares.largest)
        return await give(parts, run, given, SharesCommand(worker, limits), body.reason)
    gbit = 0.0 if body.link_gbit is None or body.link_gbit == "unknown" else body.link_gbit
    link = LinkGbit.of(gbit, body.uplink_gbit)
    return await give(parts, run, given, LinkCommand(worker, link.down, link.own_uplink), body.reason)


async def _workers(run: FollowedRun) -> list[WorkerReading]:
    status = run.live.status
    published = {worker.name: worker for worker in status.workers} if status is not None else {}
    told, processes = await asyncio.gather(_asked(run.outbox.members), _asked(run.outbox.processes))
    absent = "unknown" if told is None else "away"  # unknown: the dispatcher is busy or does not answer
    members = told or {}
    samples = sum(worker.traffic.samples for worker in published.values())
    names = [name for name in processes or {} if name.startswith(PREFIX)]
    return [
        _worker(
            published.get(name) or WorkerStatus(name=name),
            members.get(name),
            absent,
            (processes or {}).get(name),
            samples,
        )
        for name in dict.fromkeys((*members, *published, *names))
    ]


async def _asked(question: Callable[[], dict[str, AnyT]]) -> dict[str, AnyT] | None:
    """The answer of a dispatcher or supervisor; None if it does not answer in time."""
    try:
        return await asyncio.wait_for(asyncio.to_thread(question), ANSWER_SECONDS)
    except (CommandRefused, NoAnswer, TimeoutError):
        return None


def _worker(
    worker: WorkerStatus, member: ListedMember | None, absent: str, process: ListedProcess | None, samples: int
) -> WorkerReading:
    """``worker`` was published last, ``member`` is the dispatcher's answer; ``absent`` is the state without one."""
    return WorkerReading(
        name=worker.name,
        state=absent if member is None else member.state,
        process=process.state if process is not None else None,
        link_gbit=worker.link_gbit if member is None else member.link_gbit or None,
        uplink_gbit=worker.uplink_gbit if member is None else member.uplink_gbit or None,
        measured_gbit=worker.measured_gbit,
        measured_uplink_gbit=worker.measured_uplink_gbit,
        is_parked=worker.is_parked,
        share=worker.traffic.samples / samples if samples else None,
        seconds=msgspec.structs.asdict(worker.seconds),
        traffic=msgspec.structs.asdict(worker.traffic),
    )
