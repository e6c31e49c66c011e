"""The parts of a dispatcher, opened here one after the other and closed in reverse by the exit stack they enter."""

from contextlib import ExitStack
from dataclasses import dataclass

import zmq

from dispatch.alpha.controller import Tempo
from dispatch.alpha.pilot import AlphaPilot
from dispatch.checkpoints.schedule import Checkpointing
from dispatch.commands.server import ControlSocket
from dispatch.dense import needs_ring
from dispatch.feed.audience import Audience
from dispatch.feed.protocol import FEED
from dispatch.feed.server import FeedServer
from dispatch.feed.snapshots import PublishedSnapshots
from dispatch.intake import Intake, OpenLoader
from dispatch.job import DispatchJob, check_job
from dispatch.journal.run import RunJournal
from dispatch.peers.connections import ShardConnections
from dispatch.peers.crew import Crew
from dispatch.peers.providers import Providers
from dispatch.peers.roster import Roster
from dispatch.progress.publisher import StatusPublisher
from dispatch.steering.commands import Commands
from dispatch.steering.steering import Steering
from infra.base.config import PRIVATE
from infra.base.files import socket_folder
from infra.base.process import Stop
from infra.base.telemetry import Meter, Refusals
from infra.base.wire import guarded
from ingest.letters.letter import DeadLetters
from ingest.streams.source import Source


@dataclass(frozen=True)
class DispatcherParts:
    """The parts of one dispatcher. State that follows from a checkpoint is kept apart from them, in ``Training``."""

    job: DispatchJob
    stop: Stop
    meter: Meter
    journal: RunJournal
    """Decisions and commands on disk."""
    intake: Intake
    """The stream: batches and rejected events."""
    checkpointing: Checkpointing
    crew: Crew
    """The workers."""
    connections: ShardConnections
    """Connections to the parameter server."""
    commands: Commands
    """Commands of operators, and the desired state that follows from them."""
    steering: Steering
    """Applies the desired state."""
    snapshots: PublishedSnapshots
    """Snapshots of the model, for the processes that serve it."""
    publisher: StatusPublisher
    endpoints: tuple[str, str, str, str]
    """Addresses for workers and shards, for readers of the status, for operators, and for readers of the journal."""


def open_parts(
    job: DispatchJob,
    source: Source,
    letters: DeadLetters,
    stop: Stop,
    meter: Meter,
    resources: ExitStack,
    loading: OpenLoader | None,
) -> DispatcherParts:
    """Opens all parts. Raises ConfigError, before anything is opened, if settings contradict each other."""
    tempo = Tempo(dwell_seconds=job.dispatch.alpha_dwell_seconds)
    pilot = AlphaPilot(job.stream.batch, job.dispatch.workers, tempo=tempo)
    steering = Steering(job, pilot, lambda: stop.requested)
    resources.callback(steering.kernels.close)
    needs = steering.needs
    check_job(job, needs)
    journal = RunJournal(job)
    resources.callback(journal.close)
    intake = Intake(job, journal, source, letters, meter, loading)
    resources.callback(intake.close)
    checkpointing = Checkpointing(job, journal, meter)
    resources.callback(checkpointing.close)
    control_at, feed_at = control_endpoints(job, resources)
    context: zmq.Context[zmq.Socket[bytes]] = resources.enter_context(zmq.Context())
    resources.enter_context(guarded(context, job.curve))
    may_join = job.may_sum or not needs_ring(job.dense.reduce, needs.ring)
    crew = Crew(
        context=context,
        endpoint=job.dispatch.endpoint,
        run=job.run,
        roster=Roster(job.agreement.workers, may_join),
        providers=Providers(job.shards, job.agreement.shards),
        curve=job.curve,
        refused=Refusals(meter),
        silence_seconds=job.dispatch.silence_seconds,
    )
    crew.generation = journal.generation  # messages of this generation or of older ones are then known to be outdated
    resources.callback(crew.close)
    control = ControlSocket(context, control_at, job.run, job.curve, Refusals(meter))
    commands = Commands(control, crew, journal, job, stop)
    resources.callback(commands.close)
    connections = ShardConnections(context, job, crew.providers)
    resources.callback(connections.close)
    publisher = StatusPublisher(context, job.dispatch.status_endpoint, job.curve, meter)
    resources.callback(publisher.close)
    readers = ControlSocket(context, feed_at, job.run, job.curve, Refusals(meter), FEED)
    audience = Audience()
    resources.callback(FeedServer(readers, journal, audience).close)
    return DispatcherParts(
        job=job,
        stop=stop,
        meter=meter,
        journal=journal,
        intake=intake,
        checkpointing=checkpointing,
        crew=crew,
        connections=connections,
        commands=commands,
        steering=steering,
        snapshots=PublishedSnapshots(audience, checkpointing, journal, intake),
        publisher=publisher,
        endpoints=(crew.endpoint, publisher.endpoint, control.endpoint, readers.endpoint),
    )


def control_endpoints(job: DispatchJob, resources: ExitStack) -> tuple[str, str]:
    """Returns the addresses for commands and for the journal's readers; private sockets get a folder of their own."""
    dispatch = job.dispatch
    if PRIVATE in (dispatch.control_endpoint, dispatch.feed_endpoint):
        dispatch = dispatch.with_sockets(resources.enter_context(socket_folder()))
    return dispatch.control_endpoint, dispatch.feed_endpoint
