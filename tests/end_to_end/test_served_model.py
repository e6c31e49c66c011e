"""What is served of a real run: its own rows and weights, one snapshot after the other."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry

from dispatch.job import Publishing
from dispatch.placement.rows.index import Index
from infra.base.distinct import number_keys
from infra.base.storage import Storage
from infra.base.telemetry import Meter
from ps.checkpoints.manifest import manifest_numbers, read_manifest
from ps.checkpoints.publication import Deliveries
from ps.config import CheckpointConfig, RowConfig
from ps.start import start_rows
from serving.copies import Copies, ModelCopy, ModelSpec
from serving.follow import Follower
from serving.loading import load
from serving.news import DispatcherNews
from serving.snapshot_id import SnapshotId
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.test_pruning import OFTEN, TO_A_THIRD, budget_of, chunked, plan_of, pruning
from tests.end_to_end.threads import RUN, SEED, SMALL_MODEL, Plan, batches, train
from tests.end_to_end.withheld import paused
from tests.ports import free_port
from trainer.models.registry import build_model


@pytest.mark.parametrize(("workers", "shards", "optimizer"), [(2, 3, "adam"), (1, 1, "sgd")])
def test_what_is_served_is_what_was_trained(write_topic: WriteTopic, workers: int, shards: int, optimizer: str) -> None:
    model = SMALL_MODEL.model_copy(update={"dense_optimizer": optimizer})
    checkpoints = CheckpointConfig(seconds=0.001, kept=1000)
    plan = Plan(
        write_topic(12 * 64), workers, shards=shards, rows=RowConfig(dim=8), model=model, checkpoints=checkpoints
    )
    result = train(plan)
    storage, schema = Storage.at(plan.folder / "checkpoints"), plan.schema
    numbers = manifest_numbers(storage)
    copy = ModelCopy(ModelSpec(RUN, SEED, plan.scaled_rows, model, schema.fields, schema.dense))
    for number in numbers:  # base and deltas as they came
        load(storage, read_manifest(storage, number), copy)
    assert copy.snapshot is not None
    assert copy.snapshot.step == len(result.manifests)

    index, trained = Index(), batches(plan, result.manifests)
    for samples in trained:
        index.resolve(number_keys(samples.keys_BF))
    probe = replace(trained[-1], keys_BF=trained[-1].keys_BF.copy())
    unknown = np.arange(3 * schema.fields, dtype=np.uint64).reshape(3, -1)
    probe.keys_BF[:3] = unknown
    rows_BF = index.resolve(number_keys(probe.keys_BF[3:]))
    start = start_rows(plan.scaled_rows, SEED, unknown.reshape(-1)).reshape(3, schema.fields, -1)
    values = np.concatenate([start, result.rows_RT[rows_BF.rows_U[rows_BF.local_BF]]])[..., :9]
    module = build_model(model, schema.fields, 8, schema.dense, SEED, torch.float32, torch.device("cpu"))
    with torch.no_grad():
        for name, weight in module.named_parameters():
            weight.copy_(torch.from_numpy(result.dense[f"weight/{name}"]))
        tensors = torch.from_numpy(values), torch.from_numpy(probe.dense_BN)
        wanted = torch.sigmoid(module(tensors[0][..., :8], tensors[0][..., 8], tensors[1])).numpy()
    assert len(numbers) > 1
    assert np.abs(copy.predict(probe) - wanted).max() < 1e-6


class HeardNews(DispatcherNews):
    """Keeps what was served."""

    def __init__(self, endpoint: str) -> None:
        self.snapshots: list[SnapshotId] = []
        super().__init__(lambda: endpoint, RUN, None, "serve")

    def served(self, snapshot: SnapshotId, at_seconds: float) -> None:
        self.snapshots.append(snapshot)
        super().served(snapshot, at_seconds)


def test_a_server_follows_a_run_that_publishes_for_it(write_topic: WriteTopic) -> None:
    feed, published = f"tcp://127.0.0.1:{free_port()}", Publishing(seconds=0.0)
    plan = Plan(write_topic(48 * 32), batch=32, rows=RowConfig(dim=4), feed=feed, publishing=published)
    copies = Copies(ModelSpec(RUN, SEED, plan.scaled_rows, plan.model, plan.schema.fields, plan.schema.dense))
    meter, news = Meter(CollectorRegistry()), HeardNews(feed)
    plan = paused(plan, 40, lambda: len(news.snapshots) >= 3)
    with closing(Deliveries()) as deliveries:
        follower = Follower(Storage.at(plan.folder / "checkpoints"), copies, news, meter, deliveries)
        follower.start()
        try:
            result = train(plan)
        finally:
            follower.close()
    assert len(news.snapshots) >= 3
    assert news.snapshots == sorted(news.snapshots)
    assert meter.registry.get_sample_value("freshet_serving_delivered_files_total")
    assert not meter.registry.get_sample_value("freshet_serving_damaged_checkpoints_total")
    assert result.status.served.checkpoint in {snapshot.checkpoint for snapshot in news.snapshots}
    assert result.status.served.freshness.events > 0


@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize(("has_budget", "columns"), [(True, 1.0), (False, 1.0), (False, 0.5)])
def test_a_served_model_that_is_pruned_predicts_as_one_process_that_prunes(
    write_topic: WriteTopic, chunks: int, has_budget: bool, columns: float
) -> None:
    rows = chunked(chunks=chunks)
    memory = budget_of(rows, 550 * chunks).model_copy(update={"prune_spare": 0.0}) if has_budget else TO_A_THIRD
    memory = memory.model_copy(update={"columns": columns})
    plan = plan_of(write_topic, rows=rows, memory=memory, batch=32, shards=2, checkpoints=OFTEN)
    result = train(plan)
    storage, schema = Storage.at(plan.folder / "checkpoints"), plan.schema
    followed, late = (
        ModelCopy(ModelSpec(RUN, SEED, plan.scaled_rows, plan.model, schema.fields, schema.dense)) for _ in range(2)
    )
    numbers = manifest_numbers(storage)
    for number in numbers:  # base and deltas as they came
        load(storage, read_manifest(storage, number), followed)
    newest = load(storage, read_manifest(storage, numbers[-1]), late).manifest
    assert len(numbers) > 2
    assert newest.step == len(result.manifests)
    assert newest.are_new_keys_bare is has_budget

    reference, pruner = pruning(plan, result)
    assert pruner.state.live < 0.8 * chunks * len(reference.rows())
    assert newest.figures.live_share == pytest.approx(pruner.state.live / (chunks * len(reference.rows())))
    assert (newest.columns or ()) == late.table.kept == followed.table.kept == pruner.state.columns
    assert bool(pruner.state.columns) is (columns < 1.0)
    last = batches(plan, result.manifests)[-1]
    probe = replace(last, keys_BF=last.keys_BF.copy())
    probe.keys_BF[:3] = np.arange(3 * schema.fields, dtype=np.uint64).reshape(3, -1)  # unknown
    logits_B = reference.step(probe.keys_BF, probe.dense_BN, probe.labels_B, admit=pruner.admit)
    for copy in (followed, late):
        assert np.abs(copy.predict(probe) - torch.sigmoid(torch.from_numpy(logits_B)).numpy()).max() < 1e-6
