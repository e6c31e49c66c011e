"""Compares two snapshots: which rows were added, removed and changed, and how far the dense weights moved."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingest.names import KeyName
from ps.checkpoints.manifest import CheckpointFigures, Verdict
from serving.snapshots.model import ReadModel


class RowChange(msgspec.Struct, frozen=True):
    """One row that changed."""

    key: str
    """The key, in hexadecimal."""
    field: str | None
    """Field of the key; None: not known, like the value."""
    value: str | None
    """Value of the field as JSON; None: none of the events that were searched has it."""
    distance: float
    """Euclidean distance between its values."""


class ModelDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The changes from one snapshot to another."""

    checkpoints: tuple[int, int]
    steps: tuple[int, int]
    rows: tuple[int, int]
    added: int
    removed: int
    """Rows of the first that the second does not have: their keys were forgotten, or the second is older or of another
    timeline.
    """
    changed: int
    """Rows of both whose values differ."""
    mean_distance: float
    """Mean distance of the changed rows."""
    largest: tuple[RowChange, ...]
    """The largest changes of rows, largest first."""
    dense_distance: float
    """Euclidean distance between all dense weights."""
    dense_norm: float
    """Norm of the first snapshot's dense weights, for comparison."""
    dense_by_weight: dict[str, float]
    """Distances by dense weight, largest first."""
    figures: tuple[CheckpointFigures, CheckpointFigures]
    verdicts: tuple[Verdict, Verdict]


NameKeys = Callable[[list[int]], Mapping[int, KeyName]]


def compare(one: ReadModel, two: ReadModel, name_keys: NameKeys, most: int = 10) -> ModelDifference:
    """``name_keys`` finds what keys stand for, as far as known; ``most`` is the number of row changes to return."""
    distances, keys = _row_distances(one, two)
    shared = len(keys)
    order = [at for at in np.argsort(-distances, kind="stable")[:most].tolist() if distances[at] > 0]
    names = name_keys(keys[order].tolist())
    changed = int(np.count_nonzero(distances))
    by_weight = _dense_distances(one.weights, two.weights)
    return ModelDifference(
        checkpoints=(one.manifest.number, two.manifest.number),
        steps=(one.manifest.step, two.manifest.step),
        rows=(len(one.keys_R), len(two.keys_R)),
        added=len(two.keys_R) - shared,
        removed=len(one.keys_R) - shared,
        changed=changed,
        mean_distance=float(distances.sum() / changed) if changed else 0.0,
        largest=tuple(_row_change(int(keys[at]), names.get(int(keys[at])), float(distances[at])) for at in order),
        dense_distance=_length(by_weight.values()),
        dense_norm=_length(np.linalg.norm(weight) for weight in one.weights.values()),
        dense_by_weight=by_weight,
        figures=(one.manifest.figures, two.manifest.figures),
        verdicts=(one.manifest.verdict, two.manifest.verdict),
    )


def _row_change(key: int, name: KeyName | None, distance: float) -> RowChange:
    field, value = (None, None) if name is None else (name.field, name.value)
    return RowChange(f"{key:016x}", field, value, distance)


def _row_distances(one: ReadModel, two: ReadModel) -> tuple[NDArray[np.float64], NDArray[np.uint64]]:
    """How far each row that both have has moved, and its key."""
    keys, at_one, at_two = np.intersect1d(one.keys_R, two.keys_R, assume_unique=True, return_indices=True)
    moved = two.values_RW[at_two].astype(np.float64) - one.values_RW[at_one]
    return np.linalg.norm(moved, axis=1), keys.view(np.uint64)


def _dense_distances(one: Mapping[str, NDArray[Any]], two: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    found = {name: float(np.linalg.norm(two[name].astype(np.float64) - weight)) for name, weight in one.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _length(parts: Any) -> float:
    return float(np.linalg.norm(np.fromiter(parts, np.float64)))
