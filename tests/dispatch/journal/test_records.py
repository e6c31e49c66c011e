"""How records write arrays down."""

import numpy as np
import pytest

from dispatch.journal.records import StepDecided, pack_assignment
from ingest.batches.manifest import Manifest


@pytest.mark.parametrize(("workers", "worker_bytes"), [([0, 7, 255], 1), ([0, 256, 1023], 2), ([], 1)])
def test_an_assignment_takes_one_byte_a_sample_as_long_as_that_is_enough(workers: list[int], worker_bytes: int) -> None:
    assignment, found = pack_assignment(np.array(workers, np.int32))
    manifest = Manifest(run="r", generation=1, step=1, ranges=(), samples=len(workers), rejected=0, skipped=())
    record = StepDecided(manifest, assignment, 1.0, 0, worker_bytes=found)
    assert (found, len(assignment)) == (worker_bytes, worker_bytes * len(workers))
    assert record.assignment_B().tolist() == workers
