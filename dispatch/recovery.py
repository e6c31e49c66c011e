"""What the dispatcher does when someone is lost; also how it begins, since that is the same from the second step on.

1. abort     whoever is there drops what it is doing, and the connections to the shards go
2. go back   the newest usable checkpoint is chosen: state and index come from its files, the rest from the journal
3. assemble  all shards and enough workers are there, some of them new

and then the steps after the checkpoint are trained again (``dispatch/replay.py``). Each of these may be repeated:
nothing is written but that a generation starts, or that steps are void because no replacement came in time.
"""

from time import monotonic

from dispatch.coordinator import PAUSE_SECONDS, WAIT_SECONDS, Coordinator
from dispatch.errors import CheckpointUnreadable, CheckpointUnusable, JournalFull, Recoverable
from dispatch.peers.dismissal import dismiss_others
from dispatch.progress.status import Status
from dispatch.training import Training
from ps.protocol import EMPTY_MODEL

MOST_FAULTS = 20
"""in a row without a step of its own in between: the next one ends the run"""
LONGEST_PAUSE_SECONDS = 10.0
"""before storage or a disk is tried again"""
MOST_DOUBLINGS = 10
"""of such a pause, which is longer than the longest then"""


def abort(coordinator: Coordinator, fault: Recoverable) -> None:
    """Ends the generation before its time; raises the fault if there were too many in a row.

    A disk that is full, and storage that does not give out a checkpoint, are waited for.
    """
    waits = isinstance(fault, JournalFull | CheckpointUnreadable)
    coordinator.setbacks.faults += not waits
    pause_seconds = next_pause(coordinator, fault) if waits else 0.0
    told = {"in_a_row": coordinator.setbacks.faults, "pause_seconds": pause_seconds}
    coordinator.log.error("the run goes back to its last checkpoint", fault=str(fault), **told)
    if not waits:
        write_down(coordinator, fault)
    coordinator.stop.wait(pause_seconds)
    coordinator.meter.count("faults")
    if coordinator.setbacks.faults > MOST_FAULTS:
        raise fault
    coordinator.state = "waiting"
    if isinstance(fault, CheckpointUnusable):
        coordinator.checkpointing.search.damaged.add(coordinator.restore)
    if isinstance(fault, CheckpointUnreadable):
        coordinator.checkpointing.search.put_off(fault)
    coordinator.checkpointing.abandon(str(fault))
    coordinator.connections.close()
    coordinator.crew.abort(coordinator.intake.step)
    if waits:
        coordinator.setbacks.stalled = f"the run waits to go back to its last checkpoint: {fault}"
        coordinator.publisher.publish(coordinator.status())


def next_pause(coordinator: Coordinator, fault: Recoverable) -> float:
    """Doubles while there is nothing else to go back to; where there are others, a few soon retries are enough."""
    if isinstance(fault, CheckpointUnreadable) and fault.number != EMPTY_MODEL:
        return PAUSE_SECONDS
    coordinator.setbacks.waits += 1
    doublings = min(coordinator.setbacks.waits - 1, MOST_DOUBLINGS)
    return min(PAUSE_SECONDS * 2.0**doublings, LONGEST_PAUSE_SECONDS)


def write_down(coordinator: Coordinator, fault: Recoverable) -> None:
    """Puts a fault on record, if there is room: it is for those who look back, and nothing depends on it."""
    if coordinator.job.golden is not None:
        return
    try:
        coordinator.journal.fault(coordinator.intake.step, fault)
    except JournalFull as error:
        coordinator.log.warning("a fault is not on record", reason=str(error))


def go_back(coordinator: Coordinator) -> None:
    """Goes back to the newest usable checkpoint: later training is forgotten, and what is on record stays."""
    state, index = coordinator.checkpointing.choose()
    history = coordinator.journal.history
    decided = None if state is None else state.decided
    coordinator.restore = EMPTY_MODEL if state is None else state.checkpoint
    coordinator.versions.go_back()
    coordinator.training = Training(coordinator.job, coordinator.steering.needs, state, index)
    coordinator.intake.go_back(history, decided)
    if coordinator.job.golden is None:  # commands of a run that is replayed are none of this one
        coordinator.commands.go_back(history, decided)
    coordinator.crew.roster.is_replaying = True


def assemble(coordinator: Coordinator, workers: int, patience_seconds: float | None = None) -> bool:
    """Waits until all shards and so many workers are there; a new run also for where its stream begins.

    Returns False if a stop was requested before that, or if workers are still missing after a while; patience: how long
    that is, once the shards are there and at least one worker is.
    """
    crew = coordinator.crew
    since = monotonic()
    while not coordinator.stop.requested:
        is_known = coordinator.journal.history.begun is not None or coordinator.intake.start is not None
        if not (is_known and crew.providers.are_complete and crew.roster.able):
            since = monotonic()
        elif len(crew.roster.able) >= workers:
            crew.keep_alive(coordinator.intake.step)
            if len(crew.roster.able) >= workers and crew.providers.are_complete:
                return True
        elif patience_seconds is not None and monotonic() - since > patience_seconds:
            return False
        coordinator.poll(WAIT_SECONDS)
    return False


def redecide(coordinator: Coordinator) -> None:
    """The steps after the checkpoint are decided anew, for the workers that are there."""
    hint = "no replacement in time; steps since the last checkpoint are decided anew"
    coordinator.log.warning(hint, checkpoint=coordinator.restore)
    coordinator.journal.redecide(coordinator.restore, coordinator.intake.step)
    coordinator.checkpointing.void_after(coordinator.restore)
    coordinator.versions.withdraw()


def abandon(coordinator: Coordinator) -> Status:
    """Dismisses all workers before the journal has been replayed; nothing is saved, and nothing is lost."""
    dismiss_others(coordinator.crew, coordinator.intake.step)
    coordinator.commands.settle_stop(coordinator.intake.step)
    hint = "stopped before the journal was replayed; start again to resume"
    coordinator.log.warning(hint, reason=coordinator.stop.reason)
    return coordinator.status()
