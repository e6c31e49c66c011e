"""The dispatcher: owns the order of steps.

One loop, one step a turn. The order of its lines is the guarantee; a crash of this process costs, after the line

1. messages taken          nothing: a command is in the journal or is sent again, a report is of a step on record
2. checkpoint begun        that checkpoint: the run goes back to the one before, and the next is taken in its time
3. batch formed            nothing: it was in memory only, and is formed anew
4. wishes in force         nothing: they are on record, and are put in force anew
5. decided                 nothing: it was in memory only, and the batch is decided anew
6. recorded                the steps on record, which a resumed run trains again, each as it was decided: batch and
                           decision are in the journal, durable in one piece, before anyone hears of them
7. dead letters written    the same; those of the newest step are written then, each once
8. announced, 9. ordered   the same
10. steps completed        the same; until the next record their logits are not compared
11. rows written back      nothing: that ends with a checkpoint

A run begins with the steps that its journal holds already (``dispatch/recovery.py``), and goes on behind them. So does
one that has lost a worker or a shard: everyone goes back to the last checkpoint, and the steps after it are trained
again. The next step is decided while the workers train: at most ``lookahead`` ordered steps wait behind the one in
training. SIGTERM ends the loop: the steps under way are completed, every row is written back, the workers are
dismissed.
"""

from collections.abc import Callable
from contextlib import ExitStack

from dispatch.coordinator import WAIT_SECONDS, Coordinator
from dispatch.errors import Recoverable
from dispatch.job import DispatchJob
from dispatch.parts import open_parts
from dispatch.progress.status import Status
from dispatch.recovery import abandon, abort, recover
from infra.base.faults import reach
from infra.base.process import Stop
from infra.base.telemetry import Meter
from ingest.letters.letter import DeadLetters
from ingest.streams.source import Source


def run_dispatcher(
    job: DispatchJob,
    source: Source,
    letters: DeadLetters,
    stop: Stop,
    on_ready: Callable[[str, str, str, str], None],
    meter: Meter,
) -> Status:
    """Trains until a stop is requested or the stream ends; returns the last status."""
    with ExitStack() as resources:
        parts = open_parts(job, source, letters, stop, meter, resources)
        coordinator = Coordinator(parts)
        if not parts.steering.kernels.await_compiled(job.dispatch.policy):
            return abandon(coordinator)
        on_ready(*parts.endpoints)
        while True:
            try:
                if not recover(coordinator):
                    return abandon(coordinator)
                train(coordinator)
                return coordinator.finish()
            except Recoverable as fault:
                abort(coordinator, fault)
                if stop.requested and coordinator.setbacks.stalled:
                    return abandon(coordinator)


def train(coordinator: Coordinator) -> None:
    """Trains new steps, behind those on record."""
    while coordinator.goes_on():
        decider = coordinator.start_generation()
        while coordinator.goes_on() and not coordinator.needs_generation():
            coordinator.poll()  # 1
            coordinator.checkpoint_if_due(decider)  # 2
            if coordinator.is_paused:
                coordinator.rest(decider)
                continue
            if not coordinator.can_decide():
                coordinator.poll(WAIT_SECONDS)
                continue
            batch = coordinator.next_batch()  # 3
            if batch is None or coordinator.needs_generation():
                continue
            coordinator.steer()  # 4
            decision = coordinator.decide(decider, batch)  # 5
            reach("batch_formed", coordinator.step + 1)
            coordinator.record(batch, decision)  # 6
            reach("journalled", coordinator.step)
            coordinator.write_dead_letters(batch)  # 7
            if decision is None:
                continue
            coordinator.announce(coordinator.step, decision)  # 8
            coordinator.order(coordinator.step, decision, batch)  # 9
            reach("ordered", coordinator.step)
            coordinator.complete(keep=coordinator.job.dispatch.lookahead)  # 10
        coordinator.complete(keep=0)
        coordinator.flush(decider)  # 11
