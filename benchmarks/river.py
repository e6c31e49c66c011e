"""River, to compare with: a logistic regression whose features are the keys, and the dense floats by their place.

Needs the package ``river``, which Freshet does not install. It learns one sample at a time, in Python.
"""

import math
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.others import Other
from infra.base.errors import MissingProgram
from ingest.samples import Samples

RATE = 0.1
"""Of AdaGrad; the best of several set-ups on the first samples of Avazu and Criteo."""
LEAST = 1e-9
"""Probabilities are kept that far from 0 and 1."""


def open_river() -> Other:
    """Raises an error if River is missing."""
    try:
        from river import linear_model, optim
    except ImportError as error:
        raise MissingProgram(
            "River cannot be compared with: the package 'river' is missing; expected it beside Freshet; pip install "
            "river"
        ) from error
    model = linear_model.LogisticRegression(optimizer=optim.AdaGrad(RATE))

    def learn(samples: Samples) -> NDArray[np.float32]:
        return np.fromiter((_learn(model, *each) for each in features_of(samples)), np.float32, len(samples))

    return Other(f"river {version('river')} LogisticRegression, AdaGrad({RATE:g})", learn)


def features_of(samples: Samples) -> Iterator[tuple[dict[int | str, float], bool]]:
    """Samples as River takes them: features by name, and whether there was a click."""
    for label, keys, floats in zip(
        samples.labels_B.tolist(), samples.keys_BF.tolist(), samples.dense_BN.tolist(), strict=True
    ):
        features: dict[int | str, float] = dict.fromkeys(keys, 1.0)
        features |= {f"i{place}": value for place, value in enumerate(floats) if value}
        yield features, bool(label)


def _learn(model: Any, features: dict[int | str, float], is_click: bool) -> float:
    """The logit of a sample, predicted before it is learnt from."""
    probability = min(max(model.predict_proba_one(features)[True], LEAST), 1 - LEAST)
    model.learn_one(features, is_click)
    return math.log(probability / (1 - probability))
