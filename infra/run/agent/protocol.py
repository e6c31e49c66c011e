"""The messages between a supervisor and whoever adds workers to its run or takes them away."""

from typing import Annotated

import msgspec
from msgspec import Meta

from dispatch.control.protocol import Exchange
from dispatch.protocol import Gbit
from infra.run.supervisor import State
from infra.wire import Header, Name, Number, Refused, Seconds
from ps.protocol import MOST_WORKERS

MOST_PROCESSES = 4 * MOST_WORKERS
"""of a list"""
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


class StopWorker(Header, frozen=True):
    """Asks a worker to end for good: SIGTERM now, and no restart."""

    worker: Name


# ── supervisor → operator ─────────────────────────────────────────────────────────────────────────────────────────────
class ListedProcess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process as its supervisor knows it."""

    name: Name
    state: State
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
