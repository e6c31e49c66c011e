"""Trains the steps of a journal again, each as it was decided.

The batches are formed again from their ranges, and the directory is called with the assignments on record: no policy,
no clock and no measured time has a say. Logits are compared with those on record (``RunJournal.complete``). A crash
costs the replay, which begins anew: it writes nothing but the generations that it starts.
"""

from dispatch.coordinator import WAIT_SECONDS, Coordinator
from dispatch.errors import OtherEvents
from dispatch.journal.history import PastGeneration
from dispatch.journal.records import StepDecided
from dispatch.placement.decide import Decider
from dispatch.recovery import assemble, go_back, redecide
from ingest.errors import SourceUnavailable


def replay(coordinator: Coordinator) -> bool:
    """Returns once the run is where its journal ends; False if a stop was requested before that."""
    intake = coordinator.intake
    dispatch = coordinator.job.dispatch
    go_back(coordinator)
    history = coordinator.journal.history
    for past in history.generations:
        patience = 0.0 if coordinator.commands.targets.has_removed else dispatch.replace_seconds
        if not assemble(coordinator, len(past.record.members), patience):
            if coordinator.stop.requested:
                return False
            redecide(coordinator)
            return replay(coordinator)
        if not train_generation_again(coordinator, past):
            return False
    while not intake.write_last_letters(coordinator.stop):
        coordinator.poll(WAIT_SECONDS)
    if coordinator.job.golden is not None:
        return True
    intake.go_live()
    coordinator.crew.roster.is_replaying = False
    is_new = history.begun is None
    workers = dispatch.workers if is_new else len(staying(coordinator)) or 1
    patience = 0.0 if coordinator.commands.targets.has_removed else dispatch.replace_seconds
    assemble(coordinator, workers, None if is_new else patience)
    coordinator.commands.targets.has_removed = False
    return True


def staying(coordinator: Coordinator) -> list[str]:
    """Members of the newest generation that a run which goes on waits for: all but those that are to leave."""
    history = coordinator.journal.history
    roster = coordinator.crew.roster
    draining = coordinator.commands.desired.draining
    return [name for name in history.members if name not in draining and not roster.is_leaving(name)]


def train_generation_again(coordinator: Coordinator, past: PastGeneration) -> bool:
    """The steps of one generation on record; False if a stop was requested before they were trained."""
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
    """One step on record; nothing if a stop is requested while the stream does not answer."""

    def keep_in_touch() -> bool:
        """With everyone else: workers would give up a dispatcher that is silent, and operators may want something."""
        coordinator.poll(WAIT_SECONDS)
        return not coordinator.stop.requested

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
        keys_BF=batch.samples.keys_BF,
        worker_B=recorded.assignment_B(),
        sole=recorded.sole,
        hot=recorded.hot_rows(),
    )
    if (rows := coordinator.training.index.count) != recorded.rows:
        raise OtherEvents(
            f"step {recorded.step} cannot be trained again: its events bring the rows to {rows}; "
            f"expected {recorded.rows}; restore the log and the schema that the run began with"
        )
    coordinator.announce(recorded.step, decision)
    coordinator.order(recorded.step, decision, batch)
    coordinator.complete(keep=coordinator.job.dispatch.lookahead)
