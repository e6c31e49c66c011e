"""A cut of a real run, loaded as a server does, against the rows and weights that the run itself ended with."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dispatch.rows.index import Index
from infra.storage import Storage
from ps.config import CutConfig, RowConfig
from ps.cuts.manifest import manifest_numbers, read_manifest
from ps.start import start_rows
from serving.copies import ModelCopy, ModelSpec
from serving.loading import load
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.threads import RUN, SEED, SMALL_MODEL, Plan, batches, train
from trainer.models.registry import build_model


@pytest.mark.parametrize(("workers", "shards", "optimizer"), [(2, 3, "adam"), (1, 1, "sgd")])
def test_what_is_served_is_what_was_trained(write_topic: WriteTopic, workers: int, shards: int, optimizer: str) -> None:
    model = SMALL_MODEL.model_copy(update={"dense_optimizer": optimizer})
    cuts = CutConfig(seconds=0.05, kept=1000)
    plan = Plan(write_topic(12 * 64), workers, shards=shards, rows=RowConfig(dim=8), model=model, cuts=cuts)
    result = train(plan)
    storage, schema = Storage.at(plan.folder / "cuts"), plan.schema
    numbers = manifest_numbers(storage)
    copy = ModelCopy(ModelSpec(RUN, SEED, plan.scaled_rows, model, schema.fields, schema.dense))
    for number in numbers:  # base and deltas as they came
        load(storage, read_manifest(storage, number), copy)
    assert copy.version is not None
    assert copy.version.step == len(result.manifests)

    index, trained = Index(), batches(plan, result.manifests)
    for samples in trained:
        index.resolve(samples.keys_BF)
    probe = replace(trained[-1], keys_BF=trained[-1].keys_BF.copy())
    unknown = np.arange(3 * schema.fields, dtype=np.uint64).reshape(3, -1)
    probe.keys_BF[:3] = unknown
    rows_BF = index.resolve(probe.keys_BF[3:])
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
