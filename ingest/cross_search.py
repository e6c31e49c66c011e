"""Which crosses a sample of events suggests: combinations of tables that predict later rows better than the tables do.

A linear model of keys, as wide weights are learnt (docs/internals.md), goes over the rows once, in their order and in
batches that grow, and predicts each batch before it learns from it. So every gain is one on later rows, never on rows
that a weight was fitted on. A combination is tried on top of the model's predictions: it learns one weight for each of
its keys, and counts if the logloss becomes lower, by more than chance would explain. The best one becomes part of the
model, which goes over the rows again, and the others have to gain on top of it. Triples extend pairs that were chosen.

Legend: B rows, F columns of keys (tables, then chosen crosses), K distinct keys of a column.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, nlargest
from itertools import accumulate, combinations
from math import inf, log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infra.base.distinct import number_keys
from infra.base.kernels import kernel
from ingest.crosses import SuggestedCross, Suggestions, add_crosses
from ingest.samples import Samples
from ingest.schema import Schema

MOST = 8
"""Most crosses that are suggested."""
WARM_UP_SHARE = 0.25
"""Share of the rows, the first ones, whose gains do not count: no weight is known there."""
PAIRS = 30
"""Pairs that are tried with the whole model, those that gain most on top of it."""
TRIPLES = 6
"""The same for the triples that contain a chosen pair."""
MIN_ERRORS = 2.5
"""Standard errors that a gain must have: several hundred combinations are tried."""
MIN_GAIN = 1e-4
"""Least gain in logloss that is worth the keys."""
NEW_KEYS = 1.02
"""A combination must have this many times the keys of each of its parts; otherwise it says what that part says."""
FIRST_BATCH, LAST_BATCH, GROWTH = 32, 1024, 64
"""A batch has one sample for each GROWTH seen, within these bounds."""
RATE = 1.4
"""Rate of wide weights, divided by the keys of a row."""
START = 0.1
"""Squared gradient that the rates of wide weights begin with."""
BIAS = log(0.25 / 0.75)
BIAS_RATE = 0.05
SCALE_RATE = 0.06
SCALE_STEPS = 100.0
"""Steps after which the rate of field scales falls."""

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Tables = tuple[str, ...]


class Numbered(NamedTuple):
    """A column of keys under numbers 0..K-1."""

    ids_B: I32
    keys: int


class LabelledRows(NamedTuple):
    """The rows in order, without their keys."""

    labels_B: F32
    ends: I64
    """Where each batch ends."""
    first: int
    """The first row whose gain counts."""


def suggest_crosses(samples: Samples, schema: Schema, most: int = MOST) -> Suggestions:
    """The crosses that these samples suggest, in order of their event times; those of the schema are ignored."""
    order_B = np.argsort(samples.times_B, kind="stable")
    search = CrossSearch(samples.labels_B[order_B], samples.keys_BF[order_B], schema)
    logloss = search.logloss
    crosses = tuple(search.choose(most))
    later = len(order_B) - search.rows.first
    return Suggestions(
        events=len(order_B), later=later, logloss=logloss, crossed_logloss=search.logloss, crosses=crosses
    )


class CrossSearch:
    """Greedy: the model with the crosses chosen so far, and what each further combination would add to it."""

    def __init__(self, labels_B: F32, keys_BF: NDArray[np.uint64], schema: Schema) -> None:
        self._schema = schema
        self._places = {
            table.name: place
            for place, table in zip(_first_places(schema), schema.tables, strict=True)
            if table.values == 1
        }
        self._keys_BF = keys_BF
        self._fitted = [_numbered(keys_BF[:, place]) for place in range(schema.singles)]
        self._counts: dict[Tables, int] = {(name,): self._fitted[place].keys for name, place in self._places.items()}
        """Distinct keys of the tables and combinations numbered so far."""
        self._rate = RATE / (schema.singles + 1)
        self.rows = LabelledRows(labels_B, batch_ends(len(labels_B)), int(WARM_UP_SHARE * len(labels_B)))
        self.logits_B = predict(self._fitted, self.rows, self._rate)
        """The model's prediction of each row, made before the row was learnt."""

    @property
    def logloss(self) -> float:
        """Logloss of the model on the later rows."""
        losses = self._losses(self.logits_B)
        return float(losses.mean()) if losses.size else 0.0

    def choose(self, most: int) -> Iterator[SuggestedCross]:
        """Adds the best combination to the model and yields it, until none is left that gains.

        A gain rarely grows when others are chosen, so a combination is tried again only if it would be the best.
        """
        chosen: list[Tables] = []
        waiting = [(-inf, tables) for tables in self._shortlist(combinations(self._places, 2), PAIRS)]
        fresh: dict[Tables, CrossTrial] = {}
        """Trials with the model as it is."""
        while waiting and len(chosen) < most:
            _, tables = heappop(waiting)
            if tables not in fresh:
                trial = self._try_with_all(tables)
                if trial.is_worth_it:
                    fresh[tables] = trial
                    heappush(waiting, (-trial.gain, tables))
                continue
            trial = fresh[tables]
            fresh.clear()
            self._fitted.append(trial.column)
            self.logits_B = trial.logits_B
            chosen.append(tables)
            yield SuggestedCross(tables=tables, gain=trial.gain, keys=trial.column.keys)
            if len(tables) == 2:
                known = [{*other} for other in (*chosen, *(other for _, other in waiting))]
                triples = [triple for triple in self._extended(tables) if {*triple} not in known]
                for triple in self._shortlist(triples, TRIPLES):
                    heappush(waiting, (-inf, triple))

    def _extended(self, pair: Tables) -> list[Tables]:
        """The triples that contain a pair."""
        return [
            tuple(name for name in self._places if name in {*pair, more}) for more in self._places if more not in pair
        ]

    def _shortlist(self, combined: Iterable[Tables], most: int) -> list[Tables]:
        """The combinations that gain most on top of the model as it is, each of them alone."""
        gains: dict[Tables, float] = {}
        for tables in combined:
            column = self._number(tables)
            if self._is_new(tables):
                gains[tables] = try_column(column, self.logits_B, self.rows, self._rate / 2)
        return nlargest(most, gains, key=gains.__getitem__)

    def _is_new(self, tables: Tables) -> bool:
        """Whether a combination says more than each of its parts."""
        parts = [part for part in combinations(tables, len(tables) - 1) if part in self._counts]
        return all(self._counts[tables] > NEW_KEYS * self._counts[part] for part in parts)

    def _number(self, tables: Tables) -> Numbered:
        """The keys of a combination, as a schema with this cross has them."""
        members = tuple(table for table in self._schema.tables if table.name in tables)
        crossed = Schema(name="", tables=members, crosses=(tables,))
        keys_BE = self._keys_BF[:, [self._places[table.name] for table in members]]
        column = _numbered(add_crosses(keys_BE, crossed)[:, -1])
        self._counts[tables] = column.keys
        return column

    def _try_with_all(self, tables: Tables) -> "CrossTrial":
        """Learns the model again, with a further combination."""
        column = self._number(tables)
        logits_B = predict([*self._fitted, column], self.rows, self._rate)
        gains = self._losses(self.logits_B) - self._losses(logits_B)
        return CrossTrial(column, logits_B, float(gains.mean()), float(gains.std()) / sqrt(len(gains)))

    def _losses(self, logits_B: F64) -> F64:
        later = logits_B[self.rows.first :]
        return np.logaddexp(0.0, later) - self.rows.labels_B[self.rows.first :] * later


class CrossTrial(NamedTuple):
    """The model with a further column."""

    column: Numbered
    logits_B: F64
    gain: float
    """By how much logloss on later rows is lower."""
    error: float
    """Standard error of the gain."""

    @property
    def is_worth_it(self) -> bool:
        return self.gain > max(MIN_GAIN, MIN_ERRORS * self.error)


def batch_ends(rows: int) -> I64:
    """Where batches end that grow with the rows seen."""
    ends = [0]
    while ends[-1] < rows:
        size = min(max(ends[-1] // GROWTH, FIRST_BATCH), LAST_BATCH)
        ends.append(min(ends[-1] + size, rows))
    return np.array(ends[1:], np.int64)


def predict(columns: list[Numbered], rows: LabelledRows, rate: float) -> F64:
    """Logits of a linear model of these columns, each row before its batch is learnt."""
    ids_BF = np.stack([column.ids_B for column in columns], axis=1)
    starts_F = np.cumsum([0, *(column.keys for column in columns)])
    logits_B = np.empty(len(ids_BF))
    _learn(ids_BF, starts_F, rows.labels_B, rows.ends, rate, logits_B)
    return logits_B


def predict_reference(columns: list[Numbered], rows: LabelledRows, rate: float) -> F64:
    """What ``predict`` must return, batch by batch in numpy."""
    starts_F = np.cumsum([0, *(column.keys for column in columns)])
    rows_BF = np.stack([column.ids_B for column in columns], axis=1) + starts_F[:-1]
    weights, squares = np.zeros(starts_F[-1]), np.full(starts_F[-1], START)
    scales_F, first_F, second_F = np.ones(len(columns)), np.zeros(len(columns)), np.zeros(len(columns))
    bias, bias_squares, logits = BIAS, 1.0, [np.empty(0)]
    for step, (start, end) in enumerate(zip([0, *rows.ends[:-1]], rows.ends, strict=True), 1):
        used_BF = rows_BF[start:end]
        logits.append(bias + (scales_F * weights[used_BF]).sum(axis=1))
        g_B = 1 / (1 + np.exp(-logits[-1])) - rows.labels_B[start:end]
        gradient_F = (g_B[:, None] * weights[used_BF]).mean(axis=0)
        sums = np.zeros_like(weights)
        np.add.at(sums, used_BF, g_B[:, None] * scales_F)
        squares += sums**2
        weights -= rate * sums / np.sqrt(squares)
        bias_squares += g_B.sum() ** 2
        bias -= BIAS_RATE * g_B.sum() / np.sqrt(bias_squares)
        first_F += 0.1 * (gradient_F - first_F)
        second_F += 0.001 * (gradient_F**2 - second_F)
        size_F = first_F / (1 - 0.9**step) / (np.sqrt(second_F / (1 - 0.999**step)) + 1e-8)
        scales_F -= SCALE_RATE * min(1.0, sqrt(SCALE_STEPS / step)) * size_F
    return np.concatenate(logits)


def try_column(column: Numbered, logits_B: F64, rows: LabelledRows, rate: float) -> float:
    """By how much the logloss of later rows would be lower with a column on top of these logits."""
    return float(_try(column.ids_B, column.keys, logits_B, rows, rate)) / max(1, len(logits_B) - rows.first)


def _numbered(keys_B: NDArray[np.uint64]) -> Numbered:
    numbered = number_keys(np.ascontiguousarray(keys_B))
    return Numbered(numbered.local_BF, numbered.keys_U.size)


def _first_places(schema: Schema) -> list[int]:
    """Where the first key of each table is in a sample."""
    return [0, *accumulate(table.values for table in schema.tables[:-1])]


@kernel
def _learn(ids_BF: I32, starts_F: I64, labels_B: F32, ends: I64, rate: float, logits_B: F64) -> None:
    """Goes over the rows once and writes the logit of each."""
    fields = ids_BF.shape[1]
    weights = np.zeros(starts_F[fields])
    squares = np.full(weights.size, START)
    sums = np.zeros(weights.size)
    scales_F = np.ones(fields)
    first_F = np.zeros(fields)
    second_F = np.zeros(fields)
    bias = BIAS
    bias_squares = 1.0
    start = 0
    for step in range(ends.size):
        end = ends[step]
        gradients_F = np.zeros(fields)
        bias_sum = 0.0
        for i in range(start, end):
            z = bias
            for f in range(fields):
                z += scales_F[f] * weights[starts_F[f] + ids_BF[i, f]]
            logits_B[i] = z
            g = 1.0 / (1.0 + np.exp(-z)) - labels_B[i]
            bias_sum += g
            for f in range(fields):
                row = starts_F[f] + ids_BF[i, f]
                gradients_F[f] += g * weights[row]
                sums[row] += g * scales_F[f]
        for i in range(start, end):
            for f in range(fields):
                row = starts_F[f] + ids_BF[i, f]
                _update(weights, squares, sums, row, rate)
        bias_squares += bias_sum * bias_sum
        bias -= BIAS_RATE * bias_sum / np.sqrt(bias_squares)
        for f in range(fields):
            scales_F[f] -= _adam(gradients_F[f] / (end - start), first_F, second_F, f, step + 1)
        start = end


@kernel
def _try(ids_B: I32, keys: int, logits_B: F64, rows: LabelledRows, rate: float) -> float:
    """Learns one column on top of the logits; returns the sum of what later rows gain."""
    weights = np.zeros(keys)
    squares = np.full(keys, START)
    sums = np.zeros(keys)
    scale = 1.0
    first = np.zeros(1)
    second = np.zeros(1)
    total = 0.0
    start = 0
    for step in range(rows.ends.size):
        end = rows.ends[step]
        gradient = 0.0
        for i in range(start, end):
            weight = weights[ids_B[i]]
            z = logits_B[i] + scale * weight
            tail = np.exp(-z)
            g = 1.0 / (1.0 + tail) - rows.labels_B[i]
            gradient += g * weight
            sums[ids_B[i]] += g * scale
            if i >= rows.first and weight != 0.0:
                before = np.log1p(np.exp(-logits_B[i])) + (1.0 - rows.labels_B[i]) * logits_B[i]
                after = np.log1p(tail) + (1.0 - rows.labels_B[i]) * z
                total += before - after
        for i in range(start, end):
            _update(weights, squares, sums, ids_B[i], rate)
        scale -= _adam(gradient / (end - start), first, second, 0, step + 1)
        start = end
    return total


@kernel
def _update(weights: F64, squares: F64, sums: F64, row: int, rate: float) -> None:
    """Adagrad of one weight by its summed gradient, which is then empty."""
    if sums[row] != 0.0:
        squares[row] += sums[row] * sums[row]
        weights[row] -= rate * sums[row] / np.sqrt(squares[row])
        sums[row] = 0.0


@kernel
def _adam(gradient: float, first: F64, second: F64, at: int, step: int) -> float:
    """By how much Adam lowers a field scale."""
    first[at] += 0.1 * (gradient - first[at])
    second[at] += 0.001 * (gradient * gradient - second[at])
    rate: float = SCALE_RATE * min(1.0, np.sqrt(SCALE_STEPS / step))
    size: float = first[at] / (1.0 - 0.9**step) / (np.sqrt(second[at] / (1.0 - 0.999**step)) + 1e-8)
    return rate * size
