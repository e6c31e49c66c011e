"""The dispatcher: owns the order of steps.

One loop, one step a turn. The order of its lines is the guarantee; a crash of this process costs, after the line

1. decided                 nothing: it was in memory only, and the batch is formed and decided anew
2. recorded                the steps on record, which a resumed run trains again, each as it was decided: batch and
                           decision are in the journal, durable in one piece, before anyone hears of them
3. dead letters written    the same; those of the newest step are written then, each once
4. announced, 5. ordered   the same
6. step completed          the same; until the next record its logits are not compared

A run begins with the steps that its journal holds already (``dispatch/replay.py``), and goes on behind them. So does
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
from dispatch.progress.status import Status
from dispatch.recovery import abandon, abort
from dispatch.replay import replay
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
        coordinator = Coordinator(job, source, letters, stop, meter, resources)
        if not coordinator.steering.kernels.await_compiled(job.dispatch.policy):
            return abandon(coordinator)
        on_ready(*coordinator.endpoints)
        while True:
            try:
                if not replay(coordinator):
                    return abandon(coordinator)
                train(coordinator)
                return coordinator.finish()
            except Recoverable as fault:
                abort(coordinator, fault)
                if coordinator.stop.requested and coordinator.setbacks.stalled:
                    return abandon(coordinator)


def train(coordinator: Coordinator) -> None:
    """Trains new steps, behind those on record."""
    while coordinator.goes_on():
        decider = coordinator.start_generation()
        while coordinator.goes_on() and not needs_generation(coordinator):
            coordinator.poll()
            coordinator.checkpoint_if_due(decider)
            if coordinator.commands.desired.is_paused:
                coordinator.rest(decider)
                continue
            if not coordinator.steering.can_decide(coordinator.commands.desired):
                coordinator.poll(WAIT_SECONDS)
                continue
            batch = coordinator.intake.next_batch(WAIT_SECONDS)
            if batch is None or needs_generation(coordinator):
                continue
            coordinator.steering.steer(coordinator.commands, coordinator.training, coordinator.intake)
            decision = coordinator.decide(decider, batch)  # 1
            reach("batch_formed", coordinator.intake.step + 1)
            coordinator.record(batch, decision)  # 2
            reach("journalled", coordinator.intake.step)
            coordinator.write_dead_letters(batch)  # 3
            if decision is None:
                continue
            coordinator.announce(coordinator.intake.step, decision)  # 4
            coordinator.order(coordinator.intake.step, decision, batch)  # 5
            reach("ordered", coordinator.intake.step)
            coordinator.complete(keep=coordinator.job.dispatch.lookahead)  # 6
        coordinator.complete(keep=0)
        coordinator.flush(decider)


def needs_generation(coordinator: Coordinator) -> bool:
    """Whether the next step is for another generation: with other members, or for another kind of policy."""
    desired = coordinator.commands.desired
    roster = coordinator.crew.roster
    return roster.has_changed or coordinator.steering.needs_generation(desired)
