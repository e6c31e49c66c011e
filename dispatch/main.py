"""The dispatcher: owns the order of steps.

One loop, one step per iteration. The order of its lines is the guarantee. If this process crashes after a line, the
run loses:

1. messages received       nothing: a command is in the journal or is sent again; a report is about a recorded step
2. checkpoint begun        that checkpoint: the run goes back to the one before it and takes the next one when it is due
3. batch formed            nothing: the batch was only in memory and is formed again
4. chunks pruned           the training since the last checkpoint, after which the same chunks are pruned again: what
                           was pruned is recorded with the next step, and no checkpoint begins before that
5. desired state applied   nothing: it is in the journal and is applied again
6. decided                 nothing: the decision was only in memory and is made again
7. recorded                the training since the last checkpoint: the resumed run trains those steps again, each as it
                           was decided. Batch and decision are durable in the journal, in one piece, before any other
                           process is told of them
8. dead letters written    the same; the dead letters of the newest step are written after the restart, each once
9. announced, 10. ordered  the same
11. steps completed        the same; their logits become durable with the next record, so a crash before it means that
                           they cannot be compared when the steps are trained again
12. rows written back      nothing: that flush ends with a checkpoint

A run begins with the steps that its journal already holds (``dispatch/recovery.py``) and then continues with new ones.
A run that has lost a worker or a shard does the same: all processes go back to the last checkpoint, and the steps after
it are trained again. The next step is decided while the workers train: at most ``lookahead`` ordered steps wait behind
the one in training. SIGTERM ends the loop: the steps under way are completed, every row is written back, and the
workers are dismissed.
"""

from collections.abc import Callable
from contextlib import ExitStack

from dispatch.coordinator import WAIT_SECONDS, Coordinator
from dispatch.errors import Recoverable
from dispatch.intake import OpenLoader
from dispatch.job import DispatchJob
from dispatch.parts import open_parts
from dispatch.progress.status import Status
from dispatch.recovery import abandon, abort, recover
from infra.base.faults import reach
from infra.base.kernels import use_threads
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
    loading: OpenLoader | None = None,
) -> Status:
    """Trains until a stop is requested or the stream ends; returns the last status.

    loading: starts to read ahead; None: on threads of this process, from the source.
    """
    use_threads(job.dispatch.threads, job.taken_cores)
    with ExitStack() as resources:
        parts = open_parts(job, source, letters, stop, meter, resources, loading)
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
    """Trains new steps, after those in the journal."""
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
            coordinator.prune_if_due(decider)  # 4
            coordinator.steer()  # 5
            decision = coordinator.decide(decider, batch)  # 6
            reach("batch_formed", coordinator.step + 1)
            coordinator.record(batch, decision)  # 7
            reach("journalled", coordinator.step)
            coordinator.write_dead_letters(batch)  # 8
            if decision is None:
                continue
            coordinator.announce(coordinator.step, decision)  # 9
            coordinator.order(coordinator.step, decision, batch)  # 10
            reach("ordered", coordinator.step)
            coordinator.complete(keep=coordinator.job.dispatch.lookahead)  # 11
        coordinator.complete(keep=0)
        coordinator.flush(decider)  # 12
