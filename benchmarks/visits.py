"""Synthetic clicks whose columns depend on each other as those of real click logs do.

An event is an ad shown to a device on a publisher's page; each of the three entities fills a third of the columns. A
device mostly returns to one publisher, a publisher shows a few ads, and the columns of an entity describe it more or
less finely (site, domain, category). So samples of one publisher share many rows, and it matters which worker trains
which sample; with independent columns it would not. Policies gain less here than on real clicks: with 4 workers and
links of ten to one ``esd:1`` costs 32 % less than ``laia``, on Criteo 34 % and on Avazu 44 %.

Legend: B samples, F keys per sample.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.clicks import CHUNK, MIX
from ingest.crosses import add_crosses
from ingest.samples import Samples
from ingest.schema import Schema

PUBLISHERS = 1000
DEVICES = 30_000
ADS = 4000
PUBLISHER_SKEW = 1.2
DEVICE_SKEW = 0.9
AD_SKEW = 0.8
"""Exponents of popularity."""
LOYAL = 0.8
"""Share of a device's events at its own publisher."""
AD_SLOTS = 6
"""Ad slots on a publisher's page; each shows one ad."""
FINENESS = 1.5
"""Exponent of how quickly the columns of an entity get finer."""

Ints = NDArray[np.int64]


class Visits:
    """The devices, publishers and ads of one seed."""

    def __init__(self, schema: Schema, seed: int) -> None:
        self._schema = schema
        self._draw = np.random.default_rng(seed)
        self._home = self._popular(DEVICES, PUBLISHERS, PUBLISHER_SKEW)
        self._shown = self._popular(PUBLISHERS * AD_SLOTS, ADS, AD_SKEW).reshape(PUBLISHERS, AD_SLOTS)
        self._positions = [self._draw.permutation(count) for count in (PUBLISHERS, DEVICES, ADS)]
        self._effects = [self._draw.normal(0, 0.7, count) for count in (PUBLISHERS, DEVICES, ADS)]

    def samples(self, total: int) -> Iterator[Samples]:
        """Yields that many samples, in chunks."""
        for start in range(0, total, CHUNK):
            yield self._chunk(start, min(CHUNK, total - start))

    def _chunk(self, start: int, size: int) -> Samples:
        devices_B = self._popular(size, DEVICES, DEVICE_SKEW)
        anywhere_B = self._popular(size, PUBLISHERS, PUBLISHER_SKEW)
        publishers_B = np.where(self._draw.random(size) < LOYAL, self._home[devices_B], anywhere_B)
        ads_B = self._shown[publishers_B, self._popular(size, AD_SLOTS, 1.0)]
        entities = (publishers_B, devices_B, ads_B)
        odds_B = -1.0 + sum(effect[who] for effect, who in zip(self._effects, entities, strict=True))
        return Samples(
            (self._draw.random(size) < 1 / (1 + np.exp(-odds_B))).astype(np.float32),
            np.log1p(self._draw.exponential(10, (size, self._schema.dense))).astype(np.float32),
            add_crosses(self._keys(entities), self._schema),
            1.7e9 + np.arange(start, start + size, dtype=np.float64),
        )

    def _keys(self, entities: tuple[Ints, Ints, Ints]) -> NDArray[np.uint64]:
        columns = []
        for number, (who_B, position) in enumerate(zip(entities, self._positions, strict=True)):
            own = len(range(number, self._schema.singles, 3))
            for column in range(1, own + 1):
                values = max(2, int(position.size ** ((column / own) ** FINENESS)))
                columns.append(position[who_B] * values // position.size)
        values_BE = np.stack(columns, axis=1).astype(np.uint64)
        return (values_BE * MIX + np.arange(self._schema.singles, dtype=np.uint64)).astype(np.uint64)

    def _popular(self, size: int, count: int, skew: float) -> Ints:
        """Draws numbers below count; low ones are the most frequent."""
        cumulative = np.cumsum(np.arange(1, count + 1) ** -skew)
        return np.searchsorted(cumulative / cumulative[-1], self._draw.random(size)).clip(max=count - 1)
