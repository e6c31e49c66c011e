"""Trains the steps of a journal again, each as it was decided.

The batches are formed again from their ranges, and the directory is called with the assignments on record: no policy,
no clock and no measured time has a say. Logits are compared with those on record (``RunJournal.complete``). A crash
costs the replay, which begins anew: it writes nothing but the generations that it starts.
"""

from dispatch.coordinator import WAIT_SECONDS, Coordinator
from dispatch.decide import Decider
from dispatch.errors import OtherEvents
from dispatch.journal.records import StepDecided


def replay(coordinator: Coordinator) -> bool:
    """Returns once the run is where its journal ends; False if a stop was requested before that."""
    stop, intake = coordinator.stop, coordinator.intake
    for past in coordinator.journal.history.generations:
        coordinator.gather(len(past.record.members))
        if stop.requested:
            return False
        decider = coordinator.start_generation(past)
        for recorded in past.steps:
            coordinator.poll()
            if stop.requested:
                return False
            train_again(coordinator, decider, recorded)
        coordinator.complete(keep=0)
        coordinator.flush(decider)
    while not intake.write_last_letters(stop):
        coordinator.poll(WAIT_SECONDS)
    if coordinator.job.golden is None:
        intake.go_live()
    return True


def train_again(coordinator: Coordinator, decider: Decider, recorded: StepDecided) -> None:
    """One step on record."""
    batch = coordinator.intake.form_again(recorded)
    if not len(batch.samples):
        return
    as_decided = recorded.assignment_B(), recorded.sole, recorded.hot_rows()
    decision = decider.repeat(recorded.step, batch.samples.keys_BF, *as_decided)
    if coordinator.index.count != recorded.rows:
        raise OtherEvents(
            f"step {recorded.step} cannot be trained again: its events bring the rows to {coordinator.index.count}; "
            f"expected {recorded.rows}; restore the log and the schema that the run began with"
        )
    coordinator.announce(recorded.step, decision)
    coordinator.order(recorded.step, decision, batch)
    coordinator.complete(keep=coordinator.job.dispatch.lookahead)
