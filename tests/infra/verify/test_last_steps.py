"""The last step of a row, as the shards have it after a run, is the last one of the journal that used its key."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from dispatch.config import MemoryConfig
from dispatch.journal.history import JOURNAL, read_history
from dispatch.placement.rows.index import Index
from infra.base.distinct import number_keys
from infra.base.process import Stop
from infra.base.storage import Storage
from infra.run.settings import Settings, store_settings
from infra.verify.finding import Violated
from infra.verify.last_steps import KnownKeys, check_last_steps, compare, last_steps_by, last_steps_in, newest_of
from ingest.config import StreamConfig
from ingest.main import ProducerJob, run_producer
from ps.checkpoints.manifest import manifest_numbers, read_manifest
from tests.end_to_end.threads import RUN, Plan, batches
from tests.infra.verify.whole import train_whole

SAMPLES = 1280


@pytest.mark.parametrize("policy", ["esd:1", "random", "het", "fae", "joint:elastic"])
def test_a_row_s_last_step_is_the_last_one_that_used_its_key(tmp_path: Path, policy: str) -> None:
    torch.set_num_threads(1)
    run_producer(ProducerJob(StreamConfig(folder=tmp_path / "log", partitions=2), limit=SAMPLES, seed=3), Stop())
    plan, index = Plan(tmp_path, policy=policy, cache_rows=1024), Index()
    result = train_whole(plan)
    for samples in batches(plan, result.manifests):
        index.resolve(number_keys(samples.keys_BF))
    keys_K, steps_K = last_steps_by(Settings(stream=plan.stream), read_history(tmp_path / JOURNAL).steps)
    assert len(set(steps_K.tolist())) > 10
    assert sorted(index.keys.tolist()) == keys_K.tolist()
    assert (result.last_steps_R == steps_K[np.searchsorted(keys_K, index.keys)]).all()


@pytest.mark.parametrize("policy", ["esd:1", "fae:0.15:4"])
@pytest.mark.parametrize("memory", [MemoryConfig(expire_steps=4), MemoryConfig(expire_steps=4, admit_after=3)])
def test_keys_that_are_forgotten_or_rare_are_not_in_the_checkpoint(
    tmp_path: Path, policy: str, memory: MemoryConfig
) -> None:
    torch.set_num_threads(1)
    run_producer(ProducerJob(StreamConfig(folder=tmp_path / "log", partitions=2), limit=SAMPLES, seed=3), Stop())
    plan = Plan(tmp_path, policy=policy, cache_rows=1400, memory=memory)
    counts = train_whole(plan).status.keys
    assert counts.forgotten > 0
    assert (counts.rare > 0) == (memory.admit_after > 1)
    history, settings = read_history(tmp_path / JOURNAL), Settings(run=RUN, folder=tmp_path, stream=plan.stream)
    store_settings(settings)
    assert check_last_steps(tmp_path).ok
    storage = Storage.at(tmp_path / "checkpoints")
    newest = read_manifest(storage, manifest_numbers(storage)[-1])
    in_checkpoint = last_steps_in(storage, newest)
    by_steps = KnownKeys(settings).after(history.steps)
    assert len(by_steps[0]) == counts.known
    assert np.array_equal(in_checkpoint, by_steps)
    assert f"{counts.known:,} rows of checkpoint" in compare(in_checkpoint, by_steps, history, newest)
    kept = [msgspec.structs.replace(step, forget_before=0, admitted=None) for step in history.steps]
    with pytest.raises(Violated, match="that its steps used"):
        compare(in_checkpoint, KnownKeys(settings).after(kept), history, newest)


def test_of_a_key_in_several_files_the_last_counts() -> None:
    keys, last_steps = np.array([5, 7, 9], np.uint64), np.array([1, 1, 2])
    found_K, newest_K = newest_of([(keys, last_steps), (np.array([7, 3], np.uint64), np.array([4, 4]))])
    assert dict(zip(found_K.tolist(), newest_K.tolist(), strict=True)) == {3: 4, 5: 1, 7: 4, 9: 2}
