"""A process that makes the same decisions with several numbers of threads, and prints a digest of each for all of them.

Run as ``python -m tests.dispatch.placement.deciding 1 2 8``.
"""

import json
import os
import sys
from dataclasses import fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from dispatch.placement.decide import Decider, warm_up
from dispatch.placement.policies.registry import parse_spec
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import Index
from dispatch.placement.rows.pruning import Pruner, PruneTerms
from infra.base.distinct import number_keys
from infra.base.kernels import use_threads

CLOCKS = ("seconds", "cpu_seconds", "parts")


def flatten(thing: Any) -> Any:
    """Everything in a decision except what clocks measured, as plain values."""
    if is_dataclass(thing):
        return {field.name: flatten(getattr(thing, field.name)) for field in fields(thing) if field.name not in CLOCKS}
    if isinstance(thing, tuple | list):
        return [flatten(part) for part in thing]
    return thing.tolist() if isinstance(thing, np.ndarray) else repr(thing)


def decide(policy: str, workers: int, chunks: int, times: int = 1) -> str:
    """A digest of 25 decisions, for caches that do not hold everything, and of the flush after them; times: how much
    larger batches and caches are, of 4 decisions.
    """
    spec = parse_spec(policy)
    hot = 64 if spec.needs.profile_steps else 0
    directory = Directory(np.full(workers, 700 * times, np.int64), "emark", 2, spec.needs.synchronisation, hot, 0.5)
    decider = Decider(
        Index(),
        directory,
        spec.build(1, "cpu"),
        spec.needs,
        (1.0 + np.arange(workers) % 3).astype(np.float64),
        pruner=Pruner(PruneTerms(chunks)),
        sizes=np.linspace(0.2, 1.0, 1 << chunks) if chunks else None,
    )
    rng = np.random.default_rng(7)
    made = sha256()
    for step in range(1, 26 if times == 1 else 5):
        samples = times * (140 if step % 7 else 90)
        keys_BF = (rng.random((samples, 5)) ** 4 * 3000 * times).astype(np.uint64) * np.uint64(5)
        keys_BF += np.arange(5, dtype=np.uint64)
        made.update(json.dumps(flatten(decider.decide(step, number_keys(keys_BF)))).encode())
    made.update(json.dumps(flatten(decider.flush())).encode())
    return made.hexdigest()


def main(numbers: list[int]) -> None:
    found: dict[str, list[str]] = {
        "1 esd:1": [],
        "5 esd:0.5": [],
        "4 joint": [],
        "4 fae": [],
        "3 laia": [],
        "4 esd:1 2": [],
        "1 esd:1 0 60": [],
        "3 esd:1 0 60": [],
    }
    used, threads = [], []
    for number in numbers:
        used.append(use_threads(number))
        for name, digests in found.items():
            workers, policy, *sizes = name.split()
            warm_up(policy, 1)
            digests.append(decide(policy, int(workers), *map(int, sizes or ["0"])))
        threads.append(len(list(Path("/proc/self/task").iterdir())))
    result = {"digests": found, "used": used, "threads": threads, "in a child": in_a_child()}
    sys.stdout.write(json.dumps(result))


def in_a_child() -> str:
    """Decides in a forked process, which has none of these threads."""
    read, write = os.pipe()
    if not os.fork():
        os.write(write, decide("esd:1", 1, 0).encode())
        os._exit(0)
    os.wait()
    return os.read(read, 64).decode()


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1:]])
