"""A seeded stream of clicks with users, items, contexts, a known click probability for every event, and slow drift.

The world (tastes, popularity, effects) follows from the seed. Events come in chunks; chunk c follows from (seed, c)
alone, so any part of the stream can be generated again; only the time of an event may be that of its generation.
Legend: U users, I items, K taste dimensions, B events of a chunk.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from ingest.convert import Event, Value

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CHUNK = 4096
USERS = 2000
ITEMS = 500
CATEGORIES = 20
TASTES = 4
DEVICES = ("phone", "tablet", "desktop", "tv")
POSITIONS = 8
HOURS = 24
START_TIME = 1_731_600_000.0
EVENTS_PER_SECOND = 20.0
"""Events per second of event time, so that a day of hours passes in 1.7 million events."""
DRIFT_EVENTS = 400_000
"""Events in which an item's appeal swings once up and down."""
BASE = -1.4
"""Log-odds of the average event."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """B events, column by column, with their click probabilities."""

    times_B: Floats
    users_B: Ints
    items_B: Ints
    devices_B: Ints
    positions_B: Ints
    hours_B: Ints
    idle_B: Ints
    prices_B: Floats
    probabilities_B: Floats
    labels_B: Ints


class World:
    """Everything that does not change from event to event."""

    def __init__(self, seed: int) -> None:
        draw = np.random.Generator(np.random.Philox(key=[seed, 0]))
        self.seed = seed
        self.user_U = draw.normal(0, 0.7, USERS)
        self.item_I = draw.normal(0, 0.9, ITEMS)
        self.phase_I = draw.uniform(0, 2 * np.pi, ITEMS)
        self.taste_UK = draw.normal(0, 0.45, (USERS, TASTES))
        self.style_IK = draw.normal(0, 0.6, (ITEMS, TASTES))
        self.category_I = draw.integers(0, CATEGORIES, ITEMS)
        self.category_effect = draw.normal(0, 0.5, CATEGORIES)
        self.tags_I = draw.integers(0, 3, ITEMS)
        self.price_I: Floats = np.round(np.exp(draw.normal(3, 1, ITEMS)), 2).astype(np.float64)
        self.device_effect = np.array([0.4, 0.1, -0.3, -0.6])
        self.position_effect = np.linspace(0.9, -0.9, POSITIONS)
        self.hour_effect = 0.3 * np.sin(2 * np.pi * (np.arange(HOURS) - 14) / HOURS)
        self.user_order = draw.permutation(USERS)
        self.item_order = draw.permutation(ITEMS)

    def chunk(self, number: int) -> Chunk:
        """The events from number × CHUNK on."""
        draw = np.random.Generator(np.random.Philox(key=[self.seed, number + 1]))
        index_B = number * CHUNK + np.arange(CHUNK, dtype=np.float64)
        times_B = START_TIME + index_B / EVENTS_PER_SECOND
        users_B = self.user_order[_zipf(draw, USERS, 0.7)]
        items_B = self.item_order[_zipf(draw, ITEMS, 0.9)]
        devices_B = draw.choice(len(DEVICES), CHUNK, p=[0.55, 0.1, 0.3, 0.05])
        positions_B = draw.integers(0, POSITIONS, CHUNK)
        hours_B = (times_B // 3600 % HOURS).astype(np.int64)
        idle_B = np.floor(np.exp(draw.normal(5, 2, CHUNK))).astype(np.int64)
        odds_B = self._log_odds(users_B, items_B, index_B)
        odds_B += self.device_effect[devices_B] + self.position_effect[positions_B] + self.hour_effect[hours_B]
        odds_B += 0.15 * (5 - np.log1p(idle_B))
        probabilities_B = 1 / (1 + np.exp(-odds_B))
        labels_B = (draw.random(CHUNK) < probabilities_B).astype(np.int64)
        prices_B = self.price_I[items_B]
        return Chunk(
            times_B, users_B, items_B, devices_B, positions_B, hours_B, idle_B, prices_B, probabilities_B, labels_B
        )  # fmt: skip

    def _log_odds(self, users_B: Ints, items_B: Ints, index_B: Floats) -> Floats:
        drift_B = 0.4 * np.sin(2 * np.pi * index_B / DRIFT_EVENTS + self.phase_I[items_B])
        match_B = np.einsum("bk,bk->b", self.taste_UK[users_B], self.style_IK[items_B])
        fixed_B = self.user_U[users_B] + self.item_I[items_B] + self.category_effect[self.category_I[items_B]]
        return np.asarray(BASE + fixed_B + match_B + drift_B)

    def events(self, chunk: Chunk) -> Iterator[Event]:
        """The chunk's events as a device would report them."""
        columns = (chunk.times_B, chunk.labels_B, chunk.users_B, chunk.items_B, chunk.devices_B, chunk.positions_B)
        more = (chunk.hours_B, chunk.idle_B, chunk.prices_B)
        for time, label, user, item, device, position, hour, idle, price in zip(
            *(column.tolist() for column in columns + more), strict=True
        ):
            fields: dict[str, Value] = {
                "user": f"u{user}",
                "item": item,
                "category": f"c{self.category_I[item]}",
                "tags": _TAGS[self.tags_I[item]],
                "device": DEVICES[device],
                "position": position,
                "hour": hour,
                "idle_seconds": idle,
                "price": price,
            }
            yield Event(time, label, fields)


_TAGS: tuple[list[str | int | float | bool], ...] = ([], ["new"], ["new", "sale"])


def synthetic_events(seed: int, start: int = 0, clock: Callable[[], float] | None = None) -> Iterator[Event]:
    """The endless stream of a seed, from event number ``start`` on.

    clock: for the times of events; None: the world's own time, which is always the same. Nothing else of an event
    depends on
    it: the hour in which a user clicks is the world's.
    """
    world = World(seed)
    number, skip = divmod(start, CHUNK)
    while True:
        for place, event in enumerate(world.events(world.chunk(number))):
            if place >= skip:
                yield event if clock is None else structs.replace(event, event_time=clock())
        number, skip = number + 1, 0


def _zipf(draw: np.random.Generator, count: int, exponent: float) -> Ints:
    """CHUNK ranks below count; low ranks are most frequent."""
    weights = np.arange(1, count + 1) ** -exponent
    cumulative = np.cumsum(weights / weights.sum())
    return np.minimum(np.searchsorted(cumulative, draw.random(CHUNK)), count - 1)
