"""Fault points: named places in the code, the seams, at which a test ends, stops or fails a process.

    FRESHET_FAULT=worker-2:after_pull:step=37:kill,ps-0:idle:count=3:stop

PROCESS:SEAM[:step=N | :count=N]:ACTION, with commas between faults. Without a condition a fault fires when its process
first reaches the seam; with ``step`` in that step or the first one after it that reaches the seam (not every step does:
a parked worker trains nothing, and after a checkpoint there are no rows to push); with ``count`` at the N-th time since
the process was started. This requires FRESHET_ALLOW_FAULTS=1 as well: otherwise every process refuses to start.

A fault fires once in a run, and one that is written twice fires twice. Before it acts, it adds a line to
FOLDER/faults.jsonl, durably: a test reads there that its fault happened, and so does a restarted process.
"""

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from infra.base.errors import ConfigError, FreshetError
from infra.base.files import naming

FAULT = "FRESHET_FAULT"
ALLOWED = "FRESHET_ALLOW_FAULTS"
FIRED = "faults.jsonl"
"""Name of the file in the run's folder."""
WORKER = "worker"
SHARD = "ps"
DISPATCHER = "dispatcher"
API = "api"
PROCESSES = {WORKER: "worker-N", SHARD: "ps-N", DISPATCHER: "dispatcher", API: "api"}
"""How each kind of process is named."""
ACTIONS = {
    "kill": "the process kills itself (SIGKILL)",
    "stop": "the process stops itself (SIGSTOP) until it is continued (SIGCONT)",
    "raise": "an error is raised, as a mistake in the code would",
    "exit=N": "the process ends at once with this status",
}


class FaultRaised(FreshetError):
    """Raised on purpose by a fault point."""


@dataclass(frozen=True)
class Seam:
    """A place in the code at which a fault can fire."""

    process: str
    where: str


SEAMS = {
    "start": Seam(WORKER, "before it joins the dispatcher"),
    "order_received": Seam(WORKER, "it has an order and has done nothing about it"),
    "push_half_sent": Seam(WORKER, "rows have left for one shard, and not yet for the next"),
    "waiting_for_pull": Seam(WORKER, "its rows have left, and it waits for those it asked for"),
    "after_pull": Seam(WORKER, "everything it asked for has arrived"),
    "forward": Seam(WORKER, "it has predicted and not learnt"),
    "backward": Seam(WORKER, "it has gradients, and no row or weight has changed"),
    "dense_push_half_sent": Seam(WORKER, "a piece of its dense gradient has left, and not yet the next"),
    "after_report": Seam(WORKER, "it has reported a step"),
    "checkpoint_flush": Seam(WORKER, "it has the order to write rows back, and has sent none"),
    "idle": Seam(SHARD, "no message waits"),
    "keys_forgotten": Seam(SHARD, "keys are forgotten, and their numbers not yet given to others"),
    "push_half_applied": Seam(SHARD, "a push of a round is applied, and not yet the next worker's"),
    "pull": Seam(SHARD, "a pull can be answered and is not yet"),
    "gathering": Seam(SHARD, "a part of the rows of a checkpoint is gathered"),
    "before_file": Seam(SHARD, "its file of a checkpoint is written and has not got its name"),
    "after_file": Seam(SHARD, "its file of a checkpoint has its name, and the dispatcher does not know"),
    "batch_formed": Seam(DISPATCHER, "a step is decided and not in the journal"),
    "journalled": Seam(DISPATCHER, "a step is in the journal and not announced"),
    "announced_one_shard": Seam(DISPATCHER, "one shard knows of a round, and not yet the next"),
    "pruned": Seam(DISPATCHER, "chunks of rows are pruned, and neither a checkpoint nor the journal knows"),
    "ordered": Seam(DISPATCHER, "the workers have their orders"),
    "checkpoint_half_done": Seam(DISPATCHER, "a shard has saved its part of a checkpoint, and not yet all"),
    "before_manifest": Seam(DISPATCHER, "all files of a checkpoint are durable, and its manifest is not written"),
    "after_manifest": Seam(
        DISPATCHER, "the manifest of a checkpoint is written, and the checkpoint is not in the journal"
    ),
}
"""Seams that every run reaches while it trains."""
COMMAND_SEAMS = {
    "command_stored": Seam(API, "a command is in the database, and has not been sent"),
    "command_received": Seam(DISPATCHER, "it has a command that is not in the journal"),
    "command_journalled": Seam(DISPATCHER, "a command is in the journal, and nothing has come of it"),
    "command_answered": Seam(API, "the answer to a command is here, and not in the database"),
    "command_settled": Seam(API, "the answer to a command is in the database, and nobody has been told"),
}
"""Seams that a command passes, in this order."""
ALL_SEAMS = SEAMS | COMMAND_SEAMS


class Fired(msgspec.Struct, frozen=True):
    """A fault that happened: one line of the file."""

    fault: str
    """The fault as it was written."""
    process: str
    seam: str
    step: int
    action: str
    pid: int
    at_seconds: float
    """When it fired, in seconds since 1970."""


@dataclass
class Fault:
    """One fault that a process waits for."""

    text: str
    process: str
    seam: str
    action: str
    step: int | None = None
    """Fires in this step, or in the first later one that reaches its seam."""
    count: int = 1
    """Fires at the N-th time."""
    reached: int = field(default=0, compare=False)

    def is_due(self, step: int) -> bool:
        """Called every time its seam is reached."""
        if self.step is not None:
            return step >= self.step
        self.reached += 1
        return self.reached == self.count


class Armed:
    """The faults of this process."""

    def __init__(self, faults: Sequence[Fault], path: Path) -> None:
        self._waiting = list(faults)
        self._path = path

    def reach(self, seam: str, step: int) -> None:
        for fault in [fault for fault in self._waiting if fault.seam == seam]:
            if fault.is_due(step):
                self._waiting.remove(fault)
                self._record(fault, step)
                act(fault)

    def _record(self, fault: Fault, step: int) -> None:
        """Records the fault, durably."""
        fired = Fired(fault.text, fault.process, fault.seam, step, fault.action, os.getpid(), time.time())
        with naming(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(fired) + b"\n")
                file.flush()
                os.fsync(file.fileno())


_armed: Armed | None = None


def reach(seam: str, step: int = -1) -> None:
    """Marks one of ALL_SEAMS in the code; costs tens of nanoseconds if no fault is set."""
    if _armed is not None:
        _armed.reach(seam, step)


def arm(process: str, folder: Path) -> None:
    """Makes the faults of this process fire; called once, when it starts. Raises ConfigError as ``read_faults``."""
    global _armed
    wanted = [fault for fault in read_faults(os.environ) if fault.process == process]
    if not wanted:
        return
    fired = Counter(fired.fault for fired in read_fired(folder) if fired.process == process)
    left = []
    for fault in wanted:
        if fired[fault.text]:
            fired[fault.text] -= 1
        else:
            left.append(fault)
    _armed = Armed(left, folder / FIRED) if left else None


def read_fired(folder: Path) -> list[Fired]:
    """The faults that have happened in a run."""
    path = folder / FIRED
    with naming(path):
        lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Fired) for line in lines]


def act(fault: Fault) -> None:
    name, _, value = fault.action.partition("=")
    if name == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif name == "exit":
        os._exit(int(value))
    else:
        raise FaultRaised(f"fault {fault.text} was set in {FAULT}; expected this error; unset it for a run without")


# ── what the environment says ─────────────────────────────────────────────────────────────────────────────────────────
def read_faults(environment: Mapping[str, str]) -> list[Fault]:
    """The faults that are set, for all processes; raises ConfigError if they are not allowed or cannot be parsed."""
    text = environment.get(FAULT, "")
    if not text:
        return []
    if environment.get(ALLOWED) != "1":
        raise ConfigError(
            f"{FAULT}={text} would end processes on purpose; expected it in tests alone, with {ALLOWED}=1; unset it, "
            "or allow it"
        )
    return [_read(part.strip()) for part in text.split(",")]


def _read(text: str) -> Fault:
    process, seam, *condition, action = text.split(":") if text.count(":") in (2, 3) else ("", "", "")
    kind = next((kind for kind in PROCESSES if re.fullmatch(rf"{kind}(-\d+)?", process)), None)
    if kind is None:
        raise _unknown(text, "process", process, PROCESSES.values())
    if seam not in ALL_SEAMS or ALL_SEAMS[seam].process != kind:
        known = [name for name, each in ALL_SEAMS.items() if each.process == kind]
        raise _unknown(text, f"seam of {PROCESSES[kind]}", seam, known)
    if not re.fullmatch(r"kill|stop|raise|exit=\d{1,3}", action):
        raise _unknown(text, "action", action, ACTIONS)
    when = re.fullmatch(r"(step|count)=(\d{1,18})", condition[0]) if condition else None
    if condition and when is None:
        raise _unknown(text, "condition", condition[0], ("step=N", "count=N"))
    fault = Fault(text, process, seam, action)
    if when is not None:
        setattr(fault, when[1], int(when[2]))
    return fault


def _unknown(text: str, what: str, found: str, known: Iterable[str]) -> ConfigError:
    names = ", ".join(known)
    return ConfigError(
        f"{FAULT} has fault {text!r}, whose {what} {found!r} is not known; expected "
        f"PROCESS:SEAM[:step=N|:count=N]:ACTION with one of {names}; correct it"
    )
