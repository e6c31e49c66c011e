"""A whole run inside one process: real log, real sockets, real shards and workers, each in a thread of its own.

Processes would need seconds each to start; threads let every combination of workers, policy and optimizer be run. What
is trained is the same code, message for message.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import zmq
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from dispatch.config import DispatchConfig, MemoryConfig, QualityConfig
from dispatch.dense import Reduce
from dispatch.job import DenseJob, DispatchJob, Golden, Publishing
from dispatch.journal.history import read_manifests
from dispatch.journal.log import read_records
from dispatch.journal.records import StepDecided
from dispatch.main import run_dispatcher
from dispatch.peers.shards import Shards
from dispatch.progress.status import Status
from infra.base.agreement import Agreement
from infra.base.config import PRIVATE
from infra.base.link import Link
from infra.base.process import Stop
from infra.base.telemetry import Meter
from infra.run.agreement import agreement_of
from infra.run.settings import Settings
from ingest.batches.manifest import Manifest
from ingest.batches.replay import form_batch
from ingest.config import StreamConfig
from ingest.kafka.config import KafkaConfig
from ingest.kafka.letter_topic import KafkaLetters
from ingest.letters.embedded import DeadLetterLog
from ingest.letters.letter import DeadLetters
from ingest.log.embedded import LogReader
from ingest.samples import Samples
from ingest.schema import Schema, load_schema
from ingest.streams.source import Source
from ps.client import ShardClient
from ps.config import CheckpointConfig, DenseRule, PsConfig, RowConfig
from ps.main import ShardJob, run_shard
from tests.ports import free_port
from trainer.config import DENSE_FILE, ModelConfig, TrainerConfig
from trainer.job import WorkerJob
from trainer.main import run_worker
from trainer.reference import Reference

RUN = "test"
SEED = 7
WAIT_SECONDS = 100.0
"""less than a test may take, and longer than a busy machine takes for anything"""
ROWS = RowConfig()
NO_CHECKPOINTS = CheckpointConfig(seconds=0, kept=1000)
"""none but those that a change of members needs, and the whole journal stays"""
SMALL_MODEL = ModelConfig(mlp=(16, 8), cross_layers=1)


_schema = cache(load_schema)


@dataclass(frozen=True)
class Plan:
    """What to run."""

    folder: Path
    """with a topic 'clicks' below log/"""
    workers: int = 2
    policy: str = "esd:1"
    shards: int = 2
    batch: int = 64
    first_batch: int = 0
    """of batches that grow; 0: all have the same size"""
    batch_growth: int = 64
    cache_rows: int = 2048
    schema_name: str = "synthetic"
    rows: RowConfig = ROWS
    model: ModelConfig = SMALL_MODEL
    samples: int | None = None
    eviction: str = "emark"
    silence_seconds: float = 120.0
    """of the dispatcher, after which a worker gives up"""
    lost_seconds: float = 30.0
    """of anyone, after which the dispatcher goes on without it"""
    replace_seconds: float = 60.0
    started_workers: int | None = None
    """workers started at once; all of them by default"""
    deadline: bool = False
    dense_bytes: int = 0
    """that the dispatcher charges a worker with samples with, each way"""
    links: tuple[float, ...] = ()
    """shaped speeds in Gbit/s, one a worker"""
    uplinks: tuple[float, ...] = ()
    """of their uplinks; those of the links by default"""
    link_costs: str = "auto"
    lookahead: int = 1
    largest_share: float = 4.0
    """of the batch that an elastic policy gives a worker, in equal shares"""
    choose: str = "model"
    """how an elastic policy finds out who takes part; by the clock it would follow how busy the machine is"""
    reduce: Reduce = "auto"
    """how dense gradients are summed"""
    open_source: Callable[[], Source] | None = None
    """where events come from; the topic below log/ by default"""
    stop_at_end: bool = True
    kafka: KafkaConfig | None = None
    """where dead letters go; below log/ by default"""
    topic: str = "clicks"
    dead_letter_topic: str = "dead-letters"
    on_absent_field: str = "warn"
    golden: Path | None = None
    """folder of a run whose journal is trained again, instead of new batches"""
    last_step: int | None = None
    checkpoints: CheckpointConfig = NO_CHECKPOINTS
    write_behind: float = 0.0
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    control: str = PRIVATE
    """where the dispatcher takes commands"""
    feed: str = PRIVATE
    """where it hears of servers"""
    publishing: Publishing = field(default_factory=Publishing)
    quality: QualityConfig = field(default_factory=QualityConfig)
    lag_bound: int | None = None
    """events that may wait before the newest are skipped to; None: never"""

    def source(self) -> Source:
        return self.open_source() if self.open_source else LogReader(self.stream.folder, self.stream.topic)

    def letters(self) -> DeadLetters:
        """Those of a run over Kafka go there, too."""
        if self.kafka is not None:
            return KafkaLetters(self.kafka, self.dead_letter_topic, self.stream.topic, f"{RUN}/{self.stream.topic}")
        return DeadLetterLog(self.stream.folder, self.dead_letter_topic, f"{RUN}/{self.stream.topic}")

    @property
    def schema(self) -> Schema:
        return _schema(self.schema_name)

    @property
    def stream(self) -> StreamConfig:
        return StreamConfig(
            folder=(self.golden or self.folder) / "log",
            topic=self.topic,
            schema_name=self.schema_name,
            batch=self.batch,
            first_batch=self.first_batch,
            batch_growth=self.batch_growth,
            linger_seconds=0,
            on_absent_field=self.on_absent_field,
            lag_policy="catch_up" if self.lag_bound is None else "skip_to_newest",
            lag_bound=self.lag_bound or 1,
        )

    @property
    def agreement(self) -> Agreement:
        trainer, shards = TrainerConfig(reduce=self.reduce), PsConfig(shards=self.shards)
        return agreement_of(
            Settings(seed=SEED, stream=self.stream, rows=self.rows, ps=shards, model=self.model, trainer=trainer)
        )

    @property
    def scaled_rows(self) -> RowConfig:
        return self.rows.of_run(self.batch, self.schema.fields)


def link_of(plan: Plan, name: str) -> Link:
    if not plan.links:
        return Link()
    worker = int(name.split("-")[1])
    return Link(plan.links[worker], uplink_gbit=plan.uplinks[worker] if plan.uplinks else None)


@dataclass
class Result:
    """What a run left behind."""

    status: Status
    rows_RT: NDArray[Any]
    """[value | state] of every row, as the shards have them after the flush"""
    last_steps_R: NDArray[np.int64]
    dense: dict[str, NDArray[Any]]
    ledger: NDArray[np.int64]
    """lines of shard, step, phase, worker, pulled, owned pushed, parts pushed, dense floats pushed and pulled"""
    manifests: list[Manifest]
    errors: list[BaseException] = field(default_factory=list)


def model_of(result: Result) -> dict[str, bytes]:
    """Every bit of the model."""
    dense = {name: weights.tobytes() for name, weights in result.dense.items()}
    return {"rows": result.rows_RT.tobytes(), "last_steps": result.last_steps_R.tobytes(), **dense}


class Threads:
    """Threads whose errors are raised when they are joined."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def start(self, target: Callable[..., None], *arguments: Any) -> None:
        def guarded() -> None:
            try:
                target(*arguments)
            except BaseException as error:  # raised again in the test's thread
                self.errors.append(error)

        self._threads.append(threading.Thread(target=guarded, daemon=True))
        self._threads[-1].start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive(), "a thread of the run did not end"
        if self.errors:
            raise self.errors[0]


def shard_job(plan: Plan, number: int, dispatcher: str) -> ShardJob:
    return ShardJob(
        number=number,
        config=PsConfig(shards=plan.shards),
        rows=plan.scaled_rows,
        run=RUN,
        seed=SEED,
        endpoint="tcp://127.0.0.1:*",
        dispatcher_endpoint=dispatcher,
        dense=DenseRule(plan.model.dense_optimizer, plan.model.dense_rate),
        agreement=plan.agreement,
        storage=str((plan.golden or plan.folder) / "checkpoints"),
        checkpoints=plan.checkpoints,
    )


@contextmanager
def running_shards(plan: Plan, dispatcher: str = "") -> Iterator[tuple[str, ...]]:
    """Shards in threads, which offer themselves to a dispatcher; yields their endpoints."""
    stop, threads = Stop(), Threads()
    endpoints: dict[int, str] = {}

    def serve(number: int) -> None:
        run_shard(shard_job(plan, number, dispatcher), stop, lambda endpoint: endpoints.update({number: endpoint}))

    for number in range(plan.shards):
        threads.start(serve, number)
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while len(endpoints) < plan.shards and not threads.errors:
            assert time.monotonic() < deadline, "the shards did not start"
            time.sleep(0.001)
        if not threads.errors:
            yield tuple(endpoints[number] for number in range(plan.shards))
    finally:
        stop.request("test is over")
        threads.join()


Companion = Callable[[Threads, str, tuple[str, ...]], None]
"""runs beside a training run; gets its threads and the endpoints of dispatcher and shards"""


def train(
    plan: Plan,
    stop: Stop | None = None,
    beside: Companion | None = None,
    worker_stop: Stop | None = None,
    leaving_worker: Stop | None = None,
    registry: CollectorRegistry | None = None,
) -> Result:
    """Trains the topic to its end and returns everything that can be compared.

    worker_stop makes every worker leave, leaving_worker the last one only.
    """
    threads, stop, dispatcher = Threads(), stop or Stop(), f"tcp://127.0.0.1:{free_port()}"
    with running_shards(plan, dispatcher) as shards:

        def start_workers(dispatcher: str, *_others: str) -> None:
            started = plan.workers if plan.started_workers is None else plan.started_workers
            for number in range(started):
                leaves = leaving_worker if number == started - 1 and leaving_worker is not None else worker_stop
                start_worker(threads, plan, f"worker-{number}", dispatcher, leaves)
            if beside is not None:
                threads.start(beside, threads, dispatcher, shards)

        job = dispatch_job(plan, dispatcher)
        with closing(plan.source()) as source, closing(plan.letters()) as letters:
            status = run_dispatcher(job, source, letters, stop, start_workers, Meter(registry or CollectorRegistry()))
        threads.join()
        return collect(plan, shards, status)


def dispatch_job(plan: Plan, dispatcher: str) -> DispatchJob:
    return DispatchJob(
        rows=plan.rows,
        run=RUN,
        seed=SEED,
        folder=plan.folder,
        stream=plan.stream,
        dispatch=DispatchConfig(
            deadline=plan.deadline,
            link_costs=plan.link_costs,
            largest_share=(plan.largest_share,),
            choose=plan.choose,
            lookahead=plan.lookahead,
            policy=plan.policy,
            alpha="fixed",
            opt_backend="cpu",  # the same decisions on a machine with a GPU
            workers=plan.workers,
            cache_rows=plan.cache_rows,
            eviction=plan.eviction,
            endpoint=dispatcher,
            control_endpoint=plan.control,
            feed_endpoint=plan.feed,
            silence_seconds=plan.lost_seconds,
            replace_seconds=plan.replace_seconds,
        ),
        schema=plan.schema,
        shards=plan.shards,
        storage=str((plan.golden or plan.folder) / "checkpoints"),
        checkpoints=plan.checkpoints,
        publishing=plan.publishing,
        quality=plan.quality,
        dense=DenseJob(plan.dense_bytes, reduce=plan.reduce),
        agreement=plan.agreement,
        samples=plan.samples,
        stop_at_end=plan.stop_at_end,
        write_behind=plan.write_behind,
        memory=plan.memory,
        golden=Golden(plan.golden, plan.last_step) if plan.golden is not None else None,
    )


def worker_job(plan: Plan, name: str, dispatcher: str) -> WorkerJob:
    return WorkerJob(
        name=name,
        run=RUN,
        seed=SEED,
        folder=plan.folder,
        dispatcher_endpoint=dispatcher,
        rows=plan.scaled_rows,
        model=plan.model,
        trainer=TrainerConfig(device="cpu", silence_seconds=plan.silence_seconds, reduce=plan.reduce),
        fields=plan.schema.fields,
        dense=plan.schema.dense,
        batch=plan.batch,
        crosses=len(plan.schema.crosses),
        pools=plan.schema.pools,
        labels=max(1, len(plan.schema.labels)),
        link=link_of(plan, name),
        agreement=plan.agreement,
    )


def start_worker(threads: Threads, plan: Plan, name: str, dispatcher: str, stop: Stop | None = None) -> None:
    threads.start(run_worker, worker_job(plan, name, dispatcher), stop or Stop(), lambda: None)


def wait_for_steps(plan: Plan, steps: int, generation: int = 1) -> None:
    """Returns once so many steps of a generation have been dispatched."""
    deadline = time.monotonic() + WAIT_SECONDS
    while sum(m.generation == generation for m in read_manifests(plan.folder / "journal")) < steps:
        assert time.monotonic() < deadline, f"generation {generation} did not get to step {steps}"
        time.sleep(0.01)


def collect(plan: Plan, shards: tuple[str, ...], status: Status) -> Result:
    manifests = read_manifests((plan.golden or plan.folder) / "journal")[: plan.last_step]
    decided = [each for each in read_records((plan.golden or plan.folder) / "journal") if isinstance(each, StepDecided)]
    rows = {each.step: each.rows for each in decided}[manifests[-1].step] if manifests else 0
    rounds = (each.pruned for each in decided if each.step <= len(manifests))
    kept = next((done.columns for done in rounds if done is not None and done.columns), ())
    with zmq.Context() as context:
        client = ShardClient(context, shards, plan.scaled_rows, RUN)
        client.open(status.generation, 0)
        client.keep_columns(kept)
        rows_RT, last_steps_R = client.peek(np.arange(rows))
        client.close()
        dispatcher = Shards(context, shards, RUN)
        ledgers = dispatcher.ledgers(status.generation)
        dispatcher.close()
    lines = [np.stack([np.full_like(ledger.step, shard), *ledger], 1) for shard, ledger in enumerate(ledgers)]
    dense = safetensors.numpy.load_file(plan.folder / DENSE_FILE)
    return Result(status, rows_RT, last_steps_R, dense, np.concatenate(lines), manifests)


_decoded: dict[tuple[Any, ...], list[Samples]] = {}
_references: dict[tuple[Any, ...], Reference] = {}
"""of this process's runs: many tests train the same batches, and decoding them and training them alone takes as long as
the run that is tested"""


def batches(plan: Plan, manifests: list[Manifest]) -> list[Samples]:
    """The batches of a run, formed again from its manifests."""
    key = _content(plan, manifests)
    if key not in _decoded:
        with closing(plan.source()) as source:
            _decoded[key] = [form_batch(source, plan.schema, manifest.ranges).samples for manifest in manifests]
    return _decoded[key]


def new_reference(plan: Plan) -> Reference:
    """One process that has not trained yet."""
    schema = plan.schema
    return Reference(
        rows=plan.scaled_rows,
        model=plan.model,
        fields=schema.singles,
        dense=schema.dense,
        seed=SEED,
        batch=plan.batch,
        crosses=len(schema.crosses),
        pools=schema.pools,
        labels=max(1, len(schema.labels)),
    )


def train_reference(plan: Plan, manifests: list[Manifest]) -> Reference:
    """One process on the same batches, whole."""
    key = model_key(plan, manifests)
    if key not in _references:
        reference = new_reference(plan)
        for samples in batches(plan, manifests):
            if len(samples):
                score(reference, samples)
        _references[key] = reference
    return _references[key]


def score(reference: Reference, samples: Samples) -> NDArray[np.float32]:
    """One process trains a batch; returns its predictions before that."""
    return reference.step(
        samples.keys_BF,
        samples.dense_BN,
        samples.labels_B,
        weights_B=samples.weights_B,
        shares_BP=samples.shares_BP,
        more_labels_BL=samples.more_labels_BL,
    )


def model_key(plan: Plan, manifests: list[Manifest]) -> tuple[Any, ...]:
    """Equal for runs that train the same model on the same batches."""
    return *_content(plan, manifests), repr(plan.scaled_rows), repr(plan.model)


def _content(plan: Plan, manifests: list[Manifest]) -> tuple[Any, ...]:
    """Equal for runs whose batches are equal: the same events, byte for byte, divided in the same way."""
    digest = hashlib.blake2b()
    for file in sorted((plan.stream.folder / plan.stream.topic).rglob("*")):
        digest.update(file.read_bytes() if file.is_file() else b"")
    elsewhere = None if plan.open_source is None else plan.folder  # on a broker: this test's own
    return digest.digest(), elsewhere, plan.schema_name, tuple(manifest.ranges for manifest in manifests)
