"""A few runs whose model, decisions and files are on record, digest by digest.

A change that is not meant to change what is computed leaves every digest as it is. After one that is, record them anew
with ``python -m tests.end_to_end.recorded`` and say in the commit why they differ.

Decisions and files are whole numbers and the same on every machine, but for decisions that follow a logarithm. Floats
are not: torch chooses its kernels by the processor. So the digests of the model are compared where a probe of torch's
arithmetic gives what it gave on the machine that recorded them; elsewhere the sums of the model are, within a
tolerance.
"""

import hashlib
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from dispatch.placement.decide import Decider
from infra.base.process import Stop
from ingest.config import StreamConfig
from ingest.main import ProducerJob, run_producer
from ps.config import RowConfig
from ps.phases import FLUSH
from tests.end_to_end.threads import SMALL_MODEL, Plan, Result, train

FILE = Path(__file__).with_name("recorded.json")
STEPS, BATCH = 20, 64
EARLIER: dict[str, Any] = {"model": SMALL_MODEL.model_copy(update={"scale_rate": 0.0})}
WIDE: dict[str, Any] = {"wide_rate": 0.03, "wide_accumulator": 0.0}
"""with these the first four runs compute what they did before fields had scales, and wide weights a rate by number and
another start of their accumulator; their digests are older than that, and did not change with it"""
ESD: dict[str, Any] = {
    "workers": 4,
    "policy": "esd:1",
    "cache_rows": 300,
    "rows": RowConfig(dim=8, **WIDE),
}
FAE: dict[str, Any] = {"workers": 3, "policy": "fae:0.15:4", "cache_rows": 700}
JOINT: dict[str, Any] = {"workers": 2, "policy": "joint", "cache_rows": 400, "eviction": "lru"}
RUNS: dict[str, dict[str, Any]] = {
    "esd": {**EARLIER, **ESD, "reduce": "ring"},
    "esd_hub": {**EARLIER, **ESD, "reduce": "hub"},
    "fae": {**EARLIER, **FAE, "rows": RowConfig(optimizer="rowwise_adagrad", **WIDE)},
    "joint": {**EARLIER, **JOINT, "rows": RowConfig(dim=4, **WIDE), "reduce": "ring"},
    "growing": {"workers": 3, "cache_rows": 600, "rows": RowConfig(dim=8), "first_batch": 16, "batch_growth": 8},
}
STREAMS: dict[str, dict[str, Any]] = {"fae": {"samples_per_record": 16}, "joint": {"poison_share": 0.05}}


class Recorded(msgspec.Struct, frozen=True):
    """One run."""

    manifests: str
    assignments: str
    traffic: str
    """rows pulled and pushed, by step and worker, as the shards counted them"""
    rows: str
    """value, state and last step of every row"""
    dense: str
    sums: list[float]
    """of absolute values: rows, then dense weights"""


class Record(msgspec.Struct, frozen=True):
    """All of them, and the arithmetic of the machine they ran on."""

    probe: str
    runs: dict[str, Recorded]


def digest(*arrays: Any) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()[:16]


def probe_arithmetic() -> str:
    """A digest of what a training step is made of: products, their gradients, logarithms, Adam."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(160, 16, generator=generator, requires_grad=True)
    optimizer = torch.optim.Adam([weights], fused=True)
    for samples in (64, 23, 16, 1):
        inputs = torch.randn(samples, 160, generator=generator)
        logits = torch.relu(inputs @ weights).sum(1)
        torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.ones(samples)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return digest(weights.detach().numpy())


def record(folder: Path, name: str) -> Recorded:
    """Trains one of the runs."""
    config = StreamConfig(folder=folder / "log", partitions=2)
    run_producer(ProducerJob(config, limit=STEPS * BATCH, seed=3, **STREAMS.get(name, {})), Stop())
    with assignments() as assigned:
        result = train(Plan(folder, batch=BATCH, **RUNS[name]))
    dense = [result.dense[key] for key in sorted(result.dense)]
    return Recorded(
        manifests=hashlib.sha256(b"".join(map(msgspec.msgpack.encode, result.manifests))).hexdigest()[:16],
        assignments=digest(*assigned),
        traffic=digest(*_sorted_ledger(result)),
        rows=digest(result.rows_RT, result.last_steps_R),
        dense=digest(*dense),
        sums=[float(np.abs(result.rows_RT).sum()), float(sum(np.abs(weights).sum() for weights in dense))],
    )


@contextmanager
def assignments() -> Iterator[list[Any]]:
    """Collects the assignment of every decision that this thread makes inside; those of a warm-up are another's."""
    seen: list[Any] = []
    decide, thread = Decider.decide, threading.current_thread()

    def listening(decider: Decider, *arguments: Any, **named: Any) -> Any:
        decision = decide(decider, *arguments, **named)
        if threading.current_thread() is thread:
            seen.append(decision.assignment_B)
        return decision

    Decider.decide = listening  # type: ignore[method-assign, assignment]
    try:
        yield seen
    finally:
        Decider.decide = decide  # type: ignore[method-assign]


def _sorted_ledger(result: Result) -> Iterator[Any]:
    """The rows of each step and flush: shards note what arrives in the order of arrival, which is nobody's decision.

    Whether rows moved early or late does not matter here.
    """
    moved = result.ledger[result.ledger[:, 4:7].any(axis=1), :7]
    moved[:, 2] = moved[:, 2] == FLUSH
    places, place = np.unique(moved[:, :4], axis=0, return_inverse=True)
    rows = np.zeros((len(places), 7), np.int64)
    rows[:, :4] = places
    for at, line in zip(place.reshape(-1), moved, strict=True):
        rows[at, 4:] += line[4:]
    yield rows


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: record(Path(folder) / name, name) for name in RUNS}
    FILE.write_bytes(msgspec.json.format(msgspec.json.encode(Record(probe_arithmetic(), runs))) + b"\n")


if __name__ == "__main__":
    main()
