"""The messages between a supervisor and whoever adds workers to its run, takes them away, or starts further runs.

A supervisor of one run answers those about its processes. One of a machine answers those about runs: it listens at
``endpoints/agent`` in the folder that holds the runs.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dispatch.commands.protocol import Exchange
from dispatch.protocol import Gbit
from infra.base.wire import REASON_CHARACTERS, Header, Name, Number, Refused, Seconds
from ps.phases import MOST_WORKERS

ADD = "add"
"""the one command of an operator that goes to the supervisor and not to the dispatcher; its value: the link's Gbit/s"""
MOST_PROCESSES = 4 * MOST_WORKERS
"""of a list"""
ProcessState = Literal["waiting", "starting", "ready", "pausing", "finished", "failed", "stopped"]
ProcessId = Annotated[int, Meta(ge=0, lt=1 << 31)]
"""0: it was never started"""


# ── operator → supervisor ─────────────────────────────────────────────────────────────────────────────────────────────
class ListProcesses(Header, frozen=True):
    """Asks for every process that the supervisor has."""


class StartWorker(Header, frozen=True):
    """Asks for a further worker."""

    worker: Name = ""
    """empty: the next name that is free"""
    link_gbit: Gbit = 0.0
    """0: not told"""
    id: Name = ""
    """one id, one worker, however often it arrives; empty: it is not sent again"""
    given_seconds: Annotated[float, Meta(ge=0, le=1e11)] = 0.0
    """since 1970; refused if the run was stopped after that; 0: now"""


class StopWorker(Header, frozen=True):
    """Asks a worker to end for good: SIGTERM now, and no restart."""

    worker: Name


class StartRun(Header, frozen=True):
    """Asks for a new run, named in the header; sent again, it starts no second one."""

    settings: Annotated[dict[Name, Annotated[str, Meta(max_length=REASON_CHARACTERS)]], Meta(max_length=200)]
    """as ``--set`` takes them, by name"""


# ── supervisor → operator ─────────────────────────────────────────────────────────────────────────────────────────────
class ListedProcess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process as its supervisor knows it."""

    name: Name
    state: ProcessState
    pid: ProcessId
    restarts: Number
    seconds: Seconds
    """since it was started or, if it does not run, since it ended"""


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
