"""Small runs with kernels that check every index: ``NUMBA_BOUNDSCHECK=1 python -m tests.end_to_end.checked FOLDER``.

An index out of bounds, which otherwise reads or overwrites somebody else's memory, is an IndexError here. Compiled
kernels are kept apart from those without checks (infra/base/kernels.py), so only the first time takes long.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from infra.base.kernels import kernel
from infra.base.process import Stop
from ingest.config import StreamConfig
from ingest.main import ProducerJob, run_producer
from ps.config import RowConfig
from tests.end_to_end import threads
from tests.end_to_end.threads import Plan, train

CHECKED = "an index out of bounds is noticed"
SAMPLES = 640
COMPILE_SECONDS = 240.0
"""that a thread of a run may have to wait for the compiler"""
PLANS = (
    {"workers": 2, "policy": "fae:0.15:2", "cache_rows": 400, "eviction": "emark"},
    {"workers": 3, "policy": "esd:0.5", "cache_rows": 160, "eviction": "lru", "rows": RowConfig(optimizer="sgd")},
    {"workers": 3, "policy": "laia", "cache_rows": 160, "eviction": "lfu"},
    {"workers": 2, "policy": "joint", "cache_rows": 200, "rows": RowConfig(optimizer="rowwise_adagrad")},
)
"""replicated rows, split and owned ones, all evictions and optimizers, both solvers; the tables of rows grow"""


@kernel
def read(values: NDArray[np.int64], place: int) -> int:
    return int(values[place])


def is_checked() -> bool:
    """Whether an index one past the end is an error, as it is not by default."""
    try:
        read(np.arange(3), 3)
    except IndexError:
        return True
    return False


def main() -> None:
    if not is_checked():
        sys.exit("indices are not checked; expected NUMBA_BOUNDSCHECK=1 in the environment")
    torch.set_num_threads(1)
    threads.WAIT_SECONDS = COMPILE_SECONDS
    sys.stdout.write(f"{CHECKED}\n")
    for number, chosen in enumerate(PLANS):
        folder = Path(sys.argv[1]) / str(number)
        run_producer(ProducerJob(StreamConfig(folder=folder / "log", partitions=2), limit=SAMPLES, seed=3), Stop())
        result = train(Plan(folder, batch=32, **chosen))  # type: ignore[arg-type]
        evicted = sum(worker.traffic.evict_pushes for worker in result.status.workers)
        sys.stdout.write(f"{chosen['policy']}: {result.status.samples} samples, {evicted} evicted, ")
        sys.stdout.write(f"{sum(worker.traffic.all_reduces for worker in result.status.workers)} replicated\n")


if __name__ == "__main__":
    main()
