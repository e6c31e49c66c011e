"""How a dispatcher starts, and how it recovers when a process is lost. The order of these steps is the guarantee:

1. abort        every process that is present drops its work, and the connections to the shards are closed
2. go back      the newest usable checkpoint is chosen: state and index come from its files, the rest from the journal
3. assemble     all shards and enough workers are present, some of them possibly new
4. train again  the steps after the checkpoint are trained, each with its recorded decision
5. go live      the dead letters of the last recorded step are written, and reading continues after that step

A run that starts begins with 2. In 4 the batches are formed again from their recorded ranges, and the directory is
called with the recorded assignments: no policy, clock or measured time influences the result. Logits are compared with
the recorded ones (``RunJournal.complete``).

A crash in any of these steps costs only the recovery, which then starts over: all that it writes is that a generation
started, or that steps are void because no replacement came in time.
"""

from time import monotonic
from typing import NamedTuple

import structlog

from dispatch.coordinator import PAUSE_SECONDS, WAIT_SECONDS, Coordinator
from dispatch.errors import CheckpointUnreadable, CheckpointUnusable, JournalUnwritable, OtherEvents, Recoverable
from dispatch.journal.history import PastGeneration
from dispatch.journal.records import StepDecided
from dispatch.parts import DispatcherParts
from dispatch.peers.dismissal import dismiss_others
from dispatch.placement.decide import Decider
from dispatch.progress.setbacks import Setbacks
from dispatch.progress.status import Status
from dispatch.training import Training
from ingest.errors import SourceUnavailable
from ps.protocol import EMPTY_MODEL

MOST_FAULTS = 20
"""Most faults in a row without a new step between them; the next one ends the run."""
LONGEST_PAUSE_SECONDS = 10.0
"""Longest pause before storage or a disk is tried again."""
MOST_DOUBLINGS = 10
"""Most doublings of the pause; the longest pause is reached before that, so larger powers are not needed."""


def recover(coordinator: Coordinator) -> bool:
    """Replays the journal to its end and goes live; returns False if a stop was requested before that."""
    parts = coordinator.parts
    coordinator.resume_from(*go_back(parts))  # 2
    for past in parts.journal.history.generations:
        if not assemble(coordinator, len(past.record.members), patience_seconds(parts)):  # 3
            if parts.stop.requested:
                return False
            redecide(parts, coordinator.restore)
            return recover(coordinator)
        if not train_generation_again(coordinator, past):  # 4
            return False
    go_live(coordinator)  # 5
    return True


# ── 1. abort ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def abort(coordinator: Coordinator, fault: Recoverable) -> None:
    """Ends the generation early; raises the fault if there were too many in a row.

    If the disk is full, or storage does not return a checkpoint, the run waits and tries again; these do not count.
    """
    parts = coordinator.parts
    setbacks = coordinator.setbacks
    waits = isinstance(fault, JournalUnwritable | CheckpointUnreadable)
    setbacks.faults += not waits
    pause_seconds = next_pause(setbacks, fault) if waits else 0.0
    facts = {"in_a_row": setbacks.faults, "pause_seconds": pause_seconds}
    coordinator.log.error("the run goes back to its last checkpoint", fault=str(fault), **facts)
    if not waits:
        write_down(parts, fault)
    parts.stop.wait(pause_seconds)
    parts.meter.count("faults")
    if setbacks.faults > MOST_FAULTS:
        raise fault
    coordinator.state = "waiting"
    if isinstance(fault, CheckpointUnusable):
        parts.checkpointing.search.damaged.add(coordinator.restore)
    if isinstance(fault, CheckpointUnreadable):
        parts.checkpointing.search.put_off(fault)
    parts.checkpointing.abandon(str(fault))
    parts.connections.close()
    parts.crew.abort(parts.intake.step)
    if waits:
        setbacks.stalled = f"the run waits to go back to its last checkpoint: {fault}"
        parts.publisher.publish(coordinator.status())


def next_pause(setbacks: Setbacks, fault: Recoverable) -> float:
    """Returns the pause before the next attempt, in seconds.

    The pause doubles while there is no other checkpoint to go back to; if there is one, a few quick retries suffice.
    """
    if isinstance(fault, CheckpointUnreadable) and fault.number != EMPTY_MODEL:
        return PAUSE_SECONDS
    setbacks.waits += 1
    doublings = min(setbacks.waits - 1, MOST_DOUBLINGS)
    return min(PAUSE_SECONDS * 2.0**doublings, LONGEST_PAUSE_SECONDS)


def write_down(parts: DispatcherParts, fault: Recoverable) -> None:
    """Records a fault in the journal if there is room: it is for readers of the history, and nothing depends on it."""
    if parts.job.golden is not None:
        return
    try:
        parts.journal.fault(parts.intake.step, fault)
    except JournalUnwritable as error:
        structlog.get_logger().warning("a fault is not on record", reason=str(error))


# ── 2. go back ────────────────────────────────────────────────────────────────────────────────────────────────────────
class ReturnPoint(NamedTuple):
    """The checkpoint that a run goes back to, and the state that follows from it."""

    restore: int
    """Number of the checkpoint."""
    training: Training
    """State of the model and of the progress at that checkpoint."""


def go_back(parts: DispatcherParts) -> ReturnPoint:
    """Chooses the newest usable checkpoint. Training after it is discarded; the journal is not."""
    found = parts.checkpointing.choose()
    history = parts.journal.history
    decided = None if found is None else found.state.decided
    parts.snapshots.go_back()
    training = Training(parts.job, parts.steering.needs, found)
    parts.intake.go_back(history, decided)
    if parts.job.golden is None:  # commands in a golden run's journal were not given to this run
        parts.commands.go_back(history, decided)
    parts.crew.roster.is_replaying = True
    return ReturnPoint(EMPTY_MODEL if found is None else found.state.checkpoint, training)


# ── 3. assemble ───────────────────────────────────────────────────────────────────────────────────────────────────────
def assemble(coordinator: Coordinator, workers: int, patience_seconds: float | None = None) -> bool:
    """Waits until all shards and this many workers are present; a new run also waits to learn where its stream begins.

    Returns False if a stop was requested before that, or if workers are still missing after ``patience_seconds``,
    counted from when all shards and at least one worker are present. None: waits without limit.
    """
    parts = coordinator.parts
    crew = parts.crew
    since = monotonic()
    while not parts.stop.requested:
        is_known = parts.journal.history.begun is not None or parts.intake.start is not None
        if not (is_known and crew.providers.are_complete and crew.roster.able):
            since = monotonic()
        elif len(crew.roster.able) >= workers:
            crew.keep_alive(parts.intake.step)
            # The keep-alive may have revealed that somebody has gone, so both conditions are checked again.
            if len(crew.roster.able) >= workers and crew.providers.are_complete:
                return True
        elif patience_seconds is not None and monotonic() - since > patience_seconds:
            return False
        coordinator.poll(WAIT_SECONDS)
    return False


def patience_seconds(parts: DispatcherParts) -> float:
    """Returns how long to wait for a replacement: not at all for a worker that an operator removed."""
    return 0.0 if parts.commands.targets.has_removed else parts.job.dispatch.replace_seconds


def redecide(parts: DispatcherParts, restore: int) -> None:
    """Voids the steps after the checkpoint, so that they are decided again for the workers that are present."""
    hint = "no replacement in time; steps since the last checkpoint are decided anew"
    structlog.get_logger().warning(hint, checkpoint=restore)
    parts.journal.redecide(restore, parts.intake.step)
    parts.checkpointing.void_after(restore)
    parts.snapshots.withdraw()


# ── 4. train again ────────────────────────────────────────────────────────────────────────────────────────────────────
def train_generation_again(coordinator: Coordinator, past: PastGeneration) -> bool:
    """Trains the recorded steps of one generation; returns False if a stop was requested before the last one."""
    decider = coordinator.start_generation(past)
    for recorded in past.steps:
        coordinator.poll()
        if coordinator.stop.requested:
            return False
        train_again(coordinator, decider, recorded)
    coordinator.complete(keep=0)
    coordinator.flush(decider)
    return True


def train_again(coordinator: Coordinator, decider: Decider, recorded: StepDecided) -> None:
    """Trains one recorded step; does nothing if a stop is requested while the stream does not answer."""

    def keep_in_touch() -> bool:
        """Polls the other processes: workers would give up on a silent dispatcher, and operators may send commands."""
        coordinator.poll(WAIT_SECONDS)
        return not coordinator.stop.requested

    if recorded.pruned is not None:
        coordinator.prune(decider, recorded.pruned)
    coordinator.training.expiry.note(recorded.step, coordinator.intake.newest_event_seconds)
    try:
        batch = coordinator.intake.form_again(recorded, keep_in_touch)
    except SourceUnavailable:
        if coordinator.stop.requested:
            return
        raise
    if not len(batch.samples):
        return
    decision = decider.repeat(
        step=recorded.step,
        keys=batch.keys,
        worker_B=recorded.assignment_B(),
        sole=recorded.sole,
        hot=recorded.hot_rows(),
        forget_before=recorded.forget_before,
        admitted=recorded.admitted,
        chunked=recorded.chunked,
    )
    if (rows := coordinator.training.index.count) != recorded.rows:
        raise OtherEvents(
            f"step {recorded.step} cannot be trained again: its events bring the rows to {rows}; "
            f"expected {recorded.rows}; restore the log and the schema that the run began with"
        )
    coordinator.announce(recorded.step, decision)
    coordinator.order(recorded.step, decision, batch)
    coordinator.complete(keep=coordinator.job.dispatch.lookahead)


# ── 5. go live ────────────────────────────────────────────────────────────────────────────────────────────────────────
def go_live(coordinator: Coordinator) -> None:
    """Starts to read the stream and waits for the workers that train new steps; a golden run has no new steps."""
    parts = coordinator.parts
    while not parts.intake.write_last_letters(parts.stop):
        coordinator.poll(WAIT_SECONDS)
    if parts.job.golden is not None:
        return
    parts.intake.go_live()
    parts.crew.roster.is_replaying = False
    is_new = parts.journal.history.begun is None
    workers = parts.job.dispatch.workers if is_new else len(staying(parts)) or 1
    assemble(coordinator, workers, None if is_new else patience_seconds(parts))
    parts.commands.targets.has_removed = False


def staying(parts: DispatcherParts) -> list[str]:
    """Returns the members of the newest generation that a resumed run waits for: all but those that are to leave."""
    roster = parts.crew.roster
    draining = parts.commands.desired.draining
    return [name for name in parts.journal.history.members if name not in draining and not roster.is_leaving(name)]


def abandon(coordinator: Coordinator) -> Status:
    """Dismisses all workers before the journal has been replayed; nothing is saved, and nothing is lost."""
    parts = coordinator.parts
    dismiss_others(parts.crew, parts.intake.step)
    parts.commands.settle_stop(parts.intake.step)
    hint = "stopped before the journal was replayed; start again to resume"
    coordinator.log.warning(hint, reason=parts.stop.reason)
    return coordinator.status()
