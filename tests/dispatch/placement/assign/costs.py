"""Random assignment problems for the tests of solvers."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def total(cost: Floats, at: NDArray[np.int32]) -> float:
    return float(cost[np.arange(len(cost)), at].sum())


def draw_cost(kind: str, samples: int, workers: int, rng: np.random.Generator) -> Floats:
    slow = np.where(np.arange(workers) % 2, 10.0, 1.0)
    match kind:
        case "random":
            return rng.normal(size=(samples, workers))
        case "tied":
            return rng.integers(0, 3, (samples, workers)).astype(float)
        case "skewed":
            uneven: Floats = rng.random((samples, workers)) * slow + 5 * slow
            return uneven
        case "clicks":
            return rng.binomial(8, 0.8, (samples, workers)).astype(np.float64) * (slow / 3)
        case _:
            return rng.random((samples, 1)) * rng.random((1, workers))


KINDS = ("random", "tied", "skewed", "clicks", "product")


def draw_capacities(samples: int, workers: int, surplus: int, rng: np.random.Generator) -> Ints:
    share = rng.random(workers) ** 2
    capacity: Ints = rng.multinomial(samples + surplus, share / share.sum()).astype(np.int64)
    return capacity


def cases(seed: int, count: int) -> Iterator[tuple[Floats, Ints]]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        samples, workers = int(rng.integers(1, 120)), int(rng.integers(1, 17))
        surplus = int(rng.choice([0, 0, 1, samples // 2, 3 * samples]))
        yield (
            draw_cost(rng.choice(KINDS), samples, workers, rng),
            draw_capacities(samples, workers, surplus, rng),
        )
