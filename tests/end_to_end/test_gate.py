"""A run whose labels go wrong for a while, and a server that follows it: the gate asks that server, and keeps it."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from dispatch.checkpoints import reference, retention
from dispatch.job import GateRule, Publishing
from infra.base.storage import Storage
from infra.base.telemetry import Meter
from ingest.errors import SourceUnavailable
from ingest.log.embedded import LogReader
from ingest.streams.source import Record
from ps.checkpoints.manifest import CheckpointManifest, manifest_numbers, read_manifest
from ps.checkpoints.publication import Deliveries
from ps.config import RowConfig
from serving.copies import Copies, ModelSpec
from serving.follow import Follower
from serving.news import DispatcherNews
from serving.scoring import QuestionScorer
from serving.snapshot_id import SnapshotId
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.threads import RUN, SEED, WAIT_SECONDS, Plan, batches, train
from tests.ports import free_port

BATCH = 32
CALM, WRONG, LAST = 60 * BATCH, 80 * BATCH, 190 * BATCH
"""offsets: labels are 0 from the first to the second"""


class ServedSnapshots(DispatcherNews):
    """Keeps what was served."""

    def __init__(self, endpoint: str, scorer: QuestionScorer) -> None:
        self.snapshots: list[SnapshotId] = []
        super().__init__(lambda: endpoint, RUN, None, "serve", scorer)

    def served(self, snapshot: SnapshotId, at_seconds: float) -> None:
        self.snapshots.append(snapshot)
        super().served(snapshot, at_seconds)


class WrongForAWhile(LogReader):
    """A log in which nobody clicks for a while; it goes on once snapshots have been judged on both sides of that."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "log", "clicks")
        self._run_folder = folder

    def read(self, partition: int, offset: int, max_bytes: int = 1 << 20) -> list[Record]:
        end = next((at for at in (CALM, WRONG) if offset <= at and not self._is_judged(at)), LAST)
        if offset >= end < LAST:
            raise SourceUnavailable("not yet")
        records = super().read(partition, offset, max_bytes)
        return [_unclicked(record) for record in records if record.offset < end]

    def _is_judged(self, end: int) -> bool:
        """Whether the snapshot behind these events has been, and if its labels are right, by what is served."""
        return any(
            checkpoint.step * BATCH == end and (end == WRONG or checkpoint.figures.reference_step > 0)
            for checkpoint in manifests(self._run_folder)
        )


def _unclicked(record: Record) -> Record:
    if not CALM <= record.offset < WRONG:
        return record
    event = msgspec.json.decode(record.payload)
    return msgspec.structs.replace(record, payload=msgspec.json.encode({**event, "label": 0}))


def manifests(folder: Path) -> list[CheckpointManifest]:
    storage = Storage.at(folder / "checkpoints")
    return [read_manifest(storage, number) for number in manifest_numbers(storage)]


@contextmanager
def following(plan: Plan) -> Iterator[tuple[Copies, ServedSnapshots]]:
    schema, meter = plan.schema, Meter(CollectorRegistry())
    copies = Copies(ModelSpec(RUN, SEED, plan.scaled_rows, plan.model, schema.fields, schema.dense))
    news = ServedSnapshots(plan.feed, QuestionScorer(copies, meter))
    with closing(Deliveries()) as deliveries:
        follower = Follower(Storage.at(plan.folder / "checkpoints"), copies, news, meter, deliveries)
        follower.start()
        try:
            yield copies, news
            follower.wait_turn(60)
        finally:
            follower.close()
    assert meter.registry.get_sample_value("freshet_serving_score_seconds_count")


def test_snapshots_that_learnt_that_nobody_clicks_are_never_served_and_the_first_good_one_after_is(
    monkeypatch: pytest.MonkeyPatch, write_topic: WriteTopic
) -> None:
    monkeypatch.setattr(retention, "SERVED", 100_000)  # all snapshots are kept, to be looked at
    monkeypatch.setattr(reference, "ANSWER_SECONDS", WAIT_SECONDS)  # however slow this machine is
    folder = write_topic(LAST, partitions=1)
    plan = Plan(
        folder,
        batch=BATCH,
        rows=RowConfig(dim=4),
        feed=f"tcp://127.0.0.1:{free_port()}",
        publishing=Publishing(0.0, GateRule(samples=256)),
        open_source=lambda: WrongForAWhile(folder),
    )
    with following(plan) as (copies, news):
        result = train(plan)
    checkpoints = {checkpoint.number: checkpoint for checkpoint in manifests(folder)}
    wrong = [checkpoint for checkpoint in checkpoints.values() if CALM < (checkpoint.step - 4) * BATCH < WRONG]
    good_after = [
        checkpoint.step
        for checkpoint in checkpoints.values()
        if checkpoint.step * BATCH > WRONG and checkpoint.verdict.is_good
    ]
    served = [checkpoints[snapshot.checkpoint] for snapshot in news.snapshots]
    assert wrong
    assert not any(checkpoint.verdict.is_good for checkpoint in wrong)
    assert all(checkpoint.figures.reference_step * BATCH <= CALM + 4 * BATCH for checkpoint in wrong)
    assert all(checkpoint.verdict.is_good for checkpoint in served)
    assert good_after
    assert copies.served is not None
    assert copies.served.step == max(good_after)
    newest = batches(plan, result.manifests)[-8:]
    with copies.reading() as (copy, _):
        predicted = np.mean([copy.predict(samples).mean() for samples in newest])
    assert predicted > 0.5 * np.mean([samples.labels_B.mean() for samples in newest])
