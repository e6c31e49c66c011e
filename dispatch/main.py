"""The dispatcher: owns the order of steps.

One loop, one step a turn. The order of its lines is the guarantee; a crash of this process costs, after the line

1. manifest appended       nothing: no one has seen the batch, and the manifest says how to form it again
2. dead letters written    nothing: a letter is written once, however often its manifest is replayed
3. decided                 the decision: a pure function of the manifests or, if elastic or cut short, one as good
4. announced, 5. ordered   the steps since the last checkpoint, which are done again from their manifests
6. step completed          the same

The next step is decided while the workers train: at most ``lookahead`` ordered steps wait behind the one in training.
SIGTERM ends the loop: the steps under way are completed, every row is written back, the workers are dismissed.
"""

from collections.abc import Callable
from contextlib import ExitStack

from dispatch.coordinator import Coordinator
from dispatch.decide import warm_up
from dispatch.job import DispatchJob
from dispatch.progress.status import Status
from infra.process import Stop
from infra.telemetry import Meter
from ingest.letters.letter import DeadLetters
from ingest.streams.source import Source


def run_dispatcher(
    job: DispatchJob,
    source: Source,
    letters: DeadLetters,
    stop: Stop,
    on_ready: Callable[[str, str], None],
    meter: Meter,
) -> Status:
    """Trains until a stop is requested or the stream ends; returns the last status."""
    with ExitStack() as resources:
        coordinator = Coordinator(job, source, letters, stop, meter, resources)
        warm_up(job.dispatch.policy, job.seed, job.dispatch.opt_backend)
        on_ready(coordinator.crew.endpoint, coordinator.publisher.endpoint)
        coordinator.gather()
        while coordinator.goes_on():
            decider = coordinator.start_generation()
            while coordinator.goes_on() and not coordinator.crew.roster.has_changed:
                coordinator.poll()
                batch = coordinator.next_batch()
                if batch is None:
                    continue
                step = coordinator.append_manifest(batch)  # 1
                coordinator.write_dead_letters(batch)  # 2
                if not len(batch.samples):
                    continue
                budget_seconds = coordinator.feedback.budget_seconds
                decision = decider.decide(step, batch.samples.keys_BF, budget_seconds)  # 3
                coordinator.announce(step, decision)  # 4
                coordinator.order(step, decision, batch)  # 5
                coordinator.complete(keep=job.dispatch.lookahead)  # 6
            coordinator.complete(keep=0)
            coordinator.flush(decider)
        return coordinator.finish()
