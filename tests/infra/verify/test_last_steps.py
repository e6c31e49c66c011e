"""The last step of a row, as the shards have it after a run, is the last one of the journal that used its key."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dispatch.journal.history import JOURNAL, read_history
from dispatch.placement.rows.index import Index
from infra.base.process import Stop
from infra.run.settings import Settings
from infra.verify.last_steps import last_steps_by, newest_of
from ingest.config import StreamConfig
from ingest.main import ProducerJob, run_producer
from tests.end_to_end.threads import Plan, batches
from tests.infra.verify.whole import train_whole

SAMPLES = 1280


@pytest.mark.parametrize("policy", ["esd:1", "random", "het", "fae", "joint:elastic"])
def test_a_row_s_last_step_is_the_last_one_that_used_its_key(tmp_path: Path, policy: str) -> None:
    torch.set_num_threads(1)
    run_producer(ProducerJob(StreamConfig(folder=tmp_path / "log", partitions=2), limit=SAMPLES, seed=3), Stop())
    plan, index = Plan(tmp_path, policy=policy, cache_rows=1024), Index()
    result = train_whole(plan)
    for samples in batches(plan, result.manifests):
        index.resolve(samples.keys_BF)
    keys_K, steps_K = last_steps_by(Settings(stream=plan.stream), read_history(tmp_path / JOURNAL).steps)
    assert len(set(steps_K.tolist())) > 10
    assert sorted(index.keys.tolist()) == keys_K.tolist()
    assert (result.last_steps_R == steps_K[np.searchsorted(keys_K, index.keys)]).all()


def test_of_a_key_in_several_files_the_last_counts() -> None:
    keys, last_steps = np.array([5, 7, 9], np.uint64), np.array([1, 1, 2])
    found_K, newest_K = newest_of([(keys, last_steps), (np.array([7, 3], np.uint64), np.array([4, 4]))])
    assert dict(zip(found_K.tolist(), newest_K.tolist(), strict=True)) == {3: 4, 5: 1, 7: 4, 9: 2}
