"""Messages to and from a supervisor: add or stop workers of its run, or start further runs.

The supervisor of one run answers those about its processes. The supervisor of a machine answers those about runs: it
listens at ``endpoints/agent`` in the folder that holds the runs.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dispatch.commands.protocol import Exchange
from dispatch.protocol import Gbit
from infra.base.wire import REASON_CHARACTERS, Header, Name, Number, Refused, Seconds
from ps.phases import MOST_WORKERS

ADD = "add"
"""The one operator command that goes to the supervisor, not to the dispatcher; its value is the speed of the link."""
MOST_PROCESSES = 4 * MOST_WORKERS
"""Most processes in a list."""
ProcessState = Literal["waiting", "starting", "ready", "pausing", "finished", "failed", "stopped"]
ProcessId = Annotated[int, Meta(ge=0, lt=1 << 31)]
"""Process id; 0 if the process was never started."""


# ── operator → supervisor ─────────────────────────────────────────────────────────────────────────────────────────────
class ListProcesses(Header, frozen=True):
    """Asks for a list of the supervisor's processes."""


class StartWorker(Header, frozen=True):
    """Asks for a further worker."""

    worker: Name = ""
    """Name of the worker; empty: the next free name."""
    link_gbit: Gbit = 0.0
    """Speed of its link; 0 if not known."""
    uplink_gbit: Gbit = 0.0
    """Speed of its uplink; 0: as fast as its link."""
    id: Name = ""
    """Id of the request; it starts one worker, however often it arrives. Empty: the request is not repeated."""
    given_seconds: Annotated[float, Meta(ge=0, le=1e11)] = 0.0
    """When it was given, in seconds since 1970; refused if the run was stopped after that. 0: now."""


class StopWorker(Header, frozen=True):
    """Asks to end a worker for good: SIGTERM now, and no restart."""

    worker: Name


class StartRun(Header, frozen=True):
    """Asks for a new run, named in the header; a repeated request starts no second one."""

    settings: Annotated[dict[Name, Annotated[str, Meta(max_length=REASON_CHARACTERS)]], Meta(max_length=200)]
    """Settings by name, in the form that ``--set`` accepts."""


# ── supervisor → operator ─────────────────────────────────────────────────────────────────────────────────────────────
class ListedProcess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process as its supervisor knows it."""

    name: Name
    state: ProcessState
    pid: ProcessId
    restarts: Number
    seconds: Seconds
    """Seconds since it was started or, if it is not running, since it ended."""


class Processes(Header, frozen=True):
    """The answer to ListProcesses."""

    processes: Annotated[tuple[ListedProcess, ...], Meta(max_length=MOST_PROCESSES)]


class WorkerStarted(Header, frozen=True):
    """The answer to StartWorker: the worker is started in the next pass."""

    worker: Name


class WorkerEnding(Header, frozen=True):
    """The answer to StopWorker: SIGTERM was sent."""

    worker: Name


AGENT = Exchange((ListProcesses, StartWorker, StopWorker), (Processes, WorkerStarted, WorkerEnding, Refused))


class RunStarted(Header, frozen=True):
    """The answer to StartRun: the run is being started, or was before."""


STARTER = Exchange((StartRun,), (RunStarted, Refused))
