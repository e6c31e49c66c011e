"""Real workers in threads on real shards, under the simplest director that is right.

Everything trained in a step is pushed at the start of the next and pulled by whoever needs it: no row stays cached.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dispatch.protocol import Order, OrderArrays, Report, ReportArrays, Welcome
from ps.client import Pulled, ShardClient
from ps.config import RowConfig
from ps.phases import FLUSH, TRAIN
from tests.ps.doubles import RUN, SEED, Announcer, stage
from tests.trainer.boards import meetings, names
from trainer.config import ModelConfig, TrainerConfig
from trainer.job import WorkerJob
from trainer.reference import Numbering
from trainer.worker import Worker

FIELDS, DENSE = 3, 2
Device = Literal["cpu", "cuda"]
Batch = tuple[NDArray[np.uint64], NDArray[np.float32], NDArray[np.float32]]
Reports = list[tuple[Report, ReportArrays]]


def batches(steps: int, size: int = 24, keys: int = 40) -> list[Batch]:
    """Random samples over few keys, so that most rows are used by several workers and over several steps."""
    generator = np.random.default_rng(3)
    return [
        (
            generator.integers(keys, size=(size, FIELDS)).astype(np.uint64) * 7919 + 13,
            generator.normal(size=(size, DENSE)).astype(np.float32),
            generator.integers(2, size=size).astype(np.float32),
        )
        for _ in range(steps)
    ]


class Director:
    """Plans rounds for its workers and remembers where the newest rows are."""

    def __init__(self, announcer: Announcer, workers: Sequence[Worker], client: ShardClient) -> None:
        self.workers = workers
        self.numbering = Numbering()
        self._announcer = announcer
        self._client = client
        self._generation = 0
        self._pool = ThreadPoolExecutor(len(workers))
        self._owned: list[dict[int, int]] = [{} for _ in workers]
        self._parts: list[dict[int, int]] = [{} for _ in workers]
        self._trained = -1

    def begin(self) -> None:
        """Everyone enters the next generation at once: the process group forms only when all are there."""
        size = len(self.workers)
        self._generation += 1
        self._announcer.open(self._generation, size)
        self._client.open(self._generation, 0)
        common: dict[str, Any] = {"run": RUN, "generation": self._generation, "step": 0}
        told: dict[str, Any] = {"names": names(size), "cache_rows": 256, "shards": self._client.endpoints}
        welcomes = [Welcome(**common, worker=w, **told) for w in range(size)]
        list(self._pool.map(Worker.begin, self.workers, welcomes))

    def train(self, step: int, batch: Batch, assigned: NDArray[np.int64]) -> Reports:
        """One step in which sample i goes to worker assigned[i]."""
        rows_BF, new_keys, _ = self.numbering.number(batch[0])
        first_new = len(self.numbering) - len(new_keys)
        new = {first_new + place: int(key) for place, key in enumerate(new_keys)}
        used = [set(rows_BF[assigned == worker].flat) for worker in range(len(self.workers))]
        times = Counter(row for rows in used for row in rows)
        pushes = self._pushes(step, TRAIN, new)
        self._owned, self._parts, self._trained = [], [], step
        orders = []
        for worker, mine in enumerate(used):
            alone = sorted((r for r in mine if times[r] == 1), key=self._place)
            shared = sorted((r for r in mine if times[r] > 1), key=self._place)
            slots = {row: slot for slot, row in enumerate([*alone, *shared])}
            self._owned.append({row: slots[row] for row in alone})
            self._parts.append({row: slots[row] for row in shared})
            mask = assigned == worker
            positions = np.array([slots[row] for row in rows_BF[mask].flat], np.int32)
            arrays = pushes[worker]._replace(
                full_rows=_rows(self._owned[-1]),
                full_slots=_slots(self._owned[-1]),
                value_rows=_rows(self._parts[-1]),
                value_slots=_slots(self._parts[-1]),
                used_slots=np.arange(len(slots), dtype=np.int32),
                positions=positions,
                dense=batch[1][mask].reshape(-1),
                labels=batch[2][mask],
            )
            orders.append((self._order(step, TRAIN, int(mask.sum()), len(batch[2]), len(alone)), arrays))
        return self._execute(orders)

    def train_replicated(self, batch: Batch, assigned: NDArray[np.int64]) -> Reports:
        """A first step in which every worker holds a replica of every row, in the order of numbers."""
        rows_BF, new_keys, _ = self.numbering.number(batch[0])
        self._announcer.announce(0, new=dict(enumerate(map(int, new_keys))), generation=self._generation)
        pulled = {row: row for row in sorted(range(len(self.numbering)), key=self._place)}
        orders = []
        for worker in range(len(self.workers)):
            mask = assigned == worker
            order = self._order(0, TRAIN, int(mask.sum()), len(batch[2]), 0, len(self.numbering))
            arrays = OrderArrays(
                full_rows=_rows(pulled),
                full_slots=_slots(pulled),
                used_slots=self.all_slots(),
                positions=rows_BF[mask].reshape(-1).astype(np.int32),
                dense=batch[1][mask].reshape(-1),
                labels=batch[2][mask],
            )
            orders.append((order, arrays))
        return self._execute(orders)

    def all_slots(self) -> NDArray[np.int32]:
        """Where replicas lie: every row in the slot of its number."""
        return np.arange(len(self.numbering), dtype=np.int32)

    def flush(self) -> Reports:
        """Writes everything back without training."""
        pushes = self._pushes(self._trained, FLUSH, {})
        self._owned, self._parts = [{} for _ in self.workers], [{} for _ in self.workers]
        return self._execute([(self._order(self._trained, FLUSH, 0, 0, 0), push) for push in pushes])

    def flushed_rows(self) -> NDArray[Any]:
        """[value | state] of every row by number, as the shards have them once a flush has reached them."""
        self.flush()
        self._announcer.announce(self._trained + 1, generation=self._generation)
        wanted = np.array(sorted(range(len(self.numbering)), key=self._place), np.int64)
        self._client.ask(self._trained + 1, TRAIN, wanted, wanted[:0])
        found = [answer for answer in self._client.answers(self._trained + 1) if isinstance(answer, Pulled)]
        rows_RT = np.empty((len(wanted), found[0].full_KT.shape[1]))
        for pulled in found:
            rows_RT[wanted[pulled.full]] = pulled.full_KT
        return rows_RT

    def close(self) -> None:
        self._pool.shutdown()
        for worker in self.workers:
            worker.close()

    def _pushes(self, step: int, phase: int, new: dict[int, int]) -> list[OrderArrays]:
        pairs = list(zip(self._owned, self._parts, strict=True))
        pushes = {worker: (list(owned), list(parts)) for worker, (owned, parts) in enumerate(pairs) if owned or parts}
        settle = sorted({row for parts in self._parts for row in parts})
        changed = dict.fromkeys([*settle, *(r for owned in self._owned for r in owned)], self._trained)
        named: dict[str, Any] = {"new": new, "settle": settle, "changed": changed, "generation": self._generation}
        self._announcer.announce(step, phase, pushes, **named)
        return [
            OrderArrays(
                owned_rows=_rows(owned), owned_slots=_slots(owned), part_rows=_rows(parts), part_slots=_slots(parts)
            )
            for owned, parts in pairs
        ]

    def _place(self, row: int) -> tuple[int, int]:
        return row % len(self._announcer.peers), row

    def _order(self, step: int, phase: int, samples: int, batch: int, alone: int, replicated: int = 0) -> Order:
        common: dict[str, Any] = {"run": RUN, "generation": self._generation, "step": step, "phase": phase}
        sizes: dict[str, Any] = {"samples": samples, "batch": batch, "alone": alone, "replicated": replicated}
        return Order(**common, **sizes, sharing=len(self.workers))

    def _execute(self, orders: list[tuple[Order, OrderArrays]]) -> Reports:
        return list(self._pool.map(lambda worker, order: worker.execute(*order), self.workers, orders))


def _rows(slots: dict[int, int]) -> NDArray[np.int64]:
    return np.array(list(slots), np.int64)


def _slots(slots: dict[int, int]) -> NDArray[np.int32]:
    return np.array(list(slots.values()), np.int32)


@contextmanager
def directed(
    rows: RowConfig,
    model: ModelConfig,
    workers: int,
    shards: int = 2,
    device: Device = "cpu",
    shared_cores: int = 0,
    graphs: bool = False,
) -> Iterator[Director]:
    """Workers whose first generation has begun.

    graphs: only for one worker; others are threads of the same process, and what they do on the GPU disturbs a capture.
    """
    with stage(rows, shards, workers) as staged:
        job = WorkerJob(
            name="worker",
            run=RUN,
            seed=SEED,
            folder=Path("nowhere"),
            dispatcher_endpoint="",
            rows=rows,
            model=model,
            trainer=TrainerConfig(
                device=device,
                graphs=graphs,
                shared_cores=shared_cores,
                reduce_timeout_seconds=30,
                pull_timeout_seconds=30,
            ),
            fields=FIELDS,
            dense=DENSE,
        )
        trained = [Worker(job, staged.client(number), own) for number, own in enumerate(meetings(workers))]
        director = Director(staged.announcer, trained, staged.client(0))
        try:
            director.begin()
            yield director
        finally:
            director.close()


def weights(worker: Worker) -> dict[str, NDArray[Any]]:
    """Dense weights by name."""
    return {name: weight.detach().cpu().numpy() for name, weight in worker.model.named_parameters()}


def equal_weights(left: Worker, right: Worker) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left.dense.tensors(), right.dense.tensors(), strict=True))
