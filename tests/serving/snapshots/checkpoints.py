"""A small model of any kind, trained a little, and a checkpoint of it on two shards."""

import msgspec
import numpy as np
import torch

from dispatch.checkpoints.state import DispatcherState, write_state
from infra.base.storage import Storage
from ingest.convert import Converter, Event
from ps.checkpoints.files import new_name, write_columns
from ps.checkpoints.gather import RowCopy
from ps.checkpoints.manifest import CheckpointManifest, ShardPart, write_manifest
from ps.checkpoints.restore import ModelSettings, dealt
from ps.columns import KeptColumns
from ps.config import RowConfig
from ps.protocol import WHOLE
from ps.pruned_store import stored_reference
from ps.start import start_rows
from serving.snapshots.model import RunModel, build
from tests.dispatch.checkpoints.checkpoints import decided, manifest_of, trained
from tests.ingest.topics import SMALL
from trainer.config import ModelConfig, ModelName
from trainer.dense import Dense

SHARDS = 2


def run_model(name: ModelName, **given: object) -> RunModel:
    config = ModelConfig.model_validate({"name": name, "mlp": (6, 5), **given})
    return RunModel("r", 7, RowConfig(dim=4), config, SMALL)


def sample_events() -> list[Event]:
    """Of which the last two have values that no other has, and absent ones."""
    known = [
        Event(0.0, 0, {"user": f"u{number % 3}", "tags": ["a", number], "age": 17 * number, "score": number - 2.5})
        for number in range(6)
    ]
    return [*known, Event(0.0, 1, {"user": "nobody", "tags": "new", "age": 3}), Event(0.0, 1, {"score": -1})]


def make_checkpoint(
    storage: Storage,
    of: RunModel,
    number: int = 1,
    scale: float = 0.3,
    known: int = 6,
    is_full: bool = False,
    kept: KeptColumns = (),
) -> CheckpointManifest:
    """A checkpoint whose rows are those of the first events, all of random values; scale: of these; is_full: whether
    there is no memory for chunks of new keys; kept: the columns that rows have kept, if they have dropped some.
    """
    samples, faults = Converter(of.schema).convert_events(sample_events()[:known])
    assert not faults
    keys = np.unique(samples.keys_BF)
    random = np.random.default_rng(number)
    rows = start_rows(of.rows, of.seed, keys)
    rows += scale * random.standard_normal(rows.shape).astype(rows.dtype)
    if of.rows.chunks:
        rows[:, -1] = random.integers(1 << of.rows.chunks, size=len(rows))
        rows = stored_reference(of.rows, rows, kept)
    dense = Dense(build(of), of.model)
    dense.weights += scale * torch.from_numpy(random.standard_normal(len(dense.weights)).astype(np.float32))
    parts = []
    for shard in range(SHARDS):
        numbers = np.arange(dealt(len(keys), shard, SHARDS))
        mine = slice(shard, None, SHARDS)
        store = ModelSettings(of.rows, of.seed, 16).empty_store(kept)
        store.reserve(len(numbers))
        store.load(numbers, keys[mine].copy(), numbers, rows[mine])
        copy = RowCopy(store, 0, 0, len(store))
        while not copy.is_complete:
            copy.go_on()
        columns = copy.columns(dense.ranges(WHOLE, SHARDS).ranges[shard])
        file = write_columns(storage, new_name(number, "shard", shard), columns)
        parts.append(ShardPart(shard, len(numbers), (file,)))
    state = DispatcherState(number, decided(5 * number, rows=len(keys)), trained())
    manifest = manifest_of(number, write_state(storage, state), 5 * number, tuple(parts), 1e9 + number)
    if of.rows.chunks:
        manifest = msgspec.structs.replace(manifest, are_new_keys_bare=is_full, columns=kept or msgspec.UNSET)
    write_manifest(storage, manifest)
    return manifest
