"""The runs that this process follows: each has a set of tasks, which start when the run is found."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import structlog
import zmq.asyncio

from api.runs.live import LiveStatus
from api.runs.outbox import Outbox
from api.runs.places import Place, find_runs
from api.runs.projector import Projector
from api.runs.recent import RecentReadings, reading_of, resident_bytes
from api.store.store import SqlStore
from dispatch.errors import CommandRefused, NoAnswer
from infra.base.errors import FreshetError
from infra.web.errors import DatabaseAway, NotAvailable, NotFound

LOOK_SECONDS = 1.0
"""How often to look for new runs."""
FINISH_SECONDS = 3.0
"""How long the rest of a journal may take to be projected when this process ends."""
AGAIN_SECONDS = 1.0
"""Pause before a task that failed is restarted."""
EXPECTED_SECONDS = 60.0
"""How long a run that is being started may take to create its folder."""
MOST_NAMED = 20
READING_SECONDS = 1.0
MEMORY_TURNS = 5
"""Readings after which memory is measured again."""


async def keep_going(work: Callable[[], Awaitable[None]]) -> None:
    """Restarts a task whenever it fails, for as long as the process lives; unexpected errors are logged."""
    while True:
        try:
            await work()
        except Exception:
            structlog.get_logger().exception("a task of the API failed and begins anew")
        await asyncio.sleep(AGAIN_SECONDS)


@dataclass
class FollowedRun:
    """One run, with the objects that follow it."""

    place: Place
    live: LiveStatus
    projector: Projector
    outbox: Outbox
    is_under_way: bool = False
    """Whether any process was working in its folder when it was last checked."""
    recent: RecentReadings = field(default_factory=RecentReadings)
    cached_answer: tuple[object, tuple[bytes, str]] | None = None
    """The last answer about its status, with the ETag, preceded by the values from which it was made."""

    @property
    def cursor(self) -> int:
        """The end of the journal, as far as this process knows; it is the ETag."""
        return max(self.projector.newest, self.live.status.cursor if self.live.status is not None else 0)

    @property
    def is_starting(self) -> bool:
        """Whether a process works in its folder, but its dispatcher has not published a status to this process yet."""
        return self.is_under_way and self.live.status is None

    @property
    def projection_lag(self) -> int:
        """Frames of the journal that have not been projected yet, as far as this process knows."""
        return max(0, self.cursor - self.projector.projected)


class FollowedRuns:
    """All runs in a folder. Run ``keep_looking`` in a task, and call ``close`` at the end."""

    def __init__(self, root: Path, store: SqlStore) -> None:
        self.root = root
        self.store = store
        self._context = zmq.asyncio.Context()
        self._runs: dict[str, FollowedRun] = {}
        self._tasks: dict[str, Sequence[asyncio.Task[None]]] = {}
        self._expected_until: dict[str, float] = {}
        """Deadline for the folder of a run that was requested to appear, by the run's name (monotonic time)."""

    @property
    def names(self) -> list[str]:
        return sorted(self._runs)

    def __contains__(self, name: str) -> bool:
        return name in self._runs

    def get(self, name: str) -> FollowedRun:
        """Raises NotFound, or NotAvailable for a run that is being started and has no folder yet."""
        if name in self._runs:
            return self._runs[name]
        if monotonic() < self._expected_until.get(name, 0.0):
            raise NotAvailable(f"run {name!r} is being started and has no folder yet; expected one soon; try again")
        raise no_run(name, self.names)

    def expect(self, name: str) -> None:
        """Notes that a run of this name is being started and will be found soon."""
        self._expected_until[name] = monotonic() + EXPECTED_SECONDS

    async def keep_looking(self) -> None:
        """Looks for runs until it is cancelled."""
        while True:
            self.find_runs()
            await asyncio.sleep(LOOK_SECONDS)

    def find_runs(self) -> None:
        """Starts to follow new runs, and starts over for runs whose folder or settings have changed."""
        found = find_runs(self.root)
        for name, place in found.items():
            known = self._runs.get(name)
            if known is None or known.place != place:
                self._begin(place)
        for name, run in self._runs.items():
            run.is_under_way = name in found and found[name].is_under_way

    async def close(self) -> None:
        tasks = [task for tasks in self._tasks.values() for task in tasks]
        for task in tasks:
            task.cancel()
        for run in self._runs.values():
            run.projector.end()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(self._finish(run) for run in self._runs.values()))
        self._context.destroy(linger=0)

    async def _finish(self, run: FollowedRun) -> None:
        """Projects the end of a run that has just been stopped, often together with this process."""
        try:
            await asyncio.wait_for(run.projector.finish(), FINISH_SECONDS)
        except (FreshetError, OSError, TimeoutError) as error:
            structlog.get_logger().warning("the end of a run is not projected", run=run.place.name, reason=str(error))

    def _begin(self, place: Place) -> None:
        for task in self._tasks.pop(place.name, ()):
            task.cancel()
        if (before := self._runs.get(place.name)) is not None:
            before.projector.end()
        self._expected_until.pop(place.name, None)
        live = LiveStatus(self._context, place)
        projector = Projector(self.store, place)
        outbox = Outbox(self.store, place, projector)
        recent = RecentReadings() if before is None else before.recent
        self._runs[place.name] = FollowedRun(place, live, projector, outbox, recent=recent)
        work = (live.receive, projector.keep_projecting, outbox.deliver)
        self._tasks[place.name] = [asyncio.create_task(keep_going(each)) for each in work]
        structlog.get_logger().info("following a run", run=place.name, folder=str(place.folder))


async def keep_reading(runs: FollowedRuns) -> None:
    """Adds a reading of every run that answers once a second, until it is cancelled; memory is measured more rarely."""
    memory: dict[str, dict[str, int]] = {}
    for turn in itertools.count():
        live = [run for name in runs.names if not (run := runs.get(name)).live.is_silent]
        if turn % MEMORY_TURNS == 0 or not all(run.place.name in memory for run in live):
            memory = {run.place.name: await asyncio.to_thread(_memory, run) for run in live}
        for run in live:
            assert run.live.status is not None
            run.recent.belong_to(run.projector.identity)
            run.recent.add(reading_of(run.live.status, memory.get(run.place.name, {})))
            with suppress(DatabaseAway):
                if run.recent.unstored and run.projector.projected:  # before that, the database may not know the run
                    await runs.store.runs.add_readings(run.place.name, run.recent.unstored)
                    run.recent.unstored.clear()
        await asyncio.sleep(READING_SECONDS)


def _memory(run: FollowedRun) -> dict[str, int]:
    """Memory by process, as far as the supervisor answers."""
    try:
        processes = run.outbox.processes()
    except (CommandRefused, NoAnswer):
        return {}
    return resident_bytes({name: each.pid for name, each in processes.items() if each.pid})


def no_run(name: str, names: Sequence[str]) -> NotFound:
    """The error for a request about a run that is not here."""
    there = ", ".join(names[:MOST_NAMED]) or "none"
    return NotFound(f"there is no run {name[:64]!r} here; expected one of GET /v1/runs: {there}")
