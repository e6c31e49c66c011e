"""River, to compare with: what it learns of a sample, and two of its models.

Needs the package ``river``, which Freshet does not install. It learns one sample at a time, in Python.
"""

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.others import Other, logit_of
from infra.base.errors import MissingProgram
from ingest.samples import Samples

RATE = 0.1
"""Of AdaGrad; the best of several set-ups on the first samples of Avazu and Criteo."""
FACTORS = 16
"""As many as the columns of our rows."""
Features = Mapping[int | str, float]
"""Their values by name."""


def open_river() -> Other:
    """A logistic regression whose features are the keys, and the dense floats by their place. Raises an error if River
    is missing.
    """
    model = linear_model()

    def learn(samples: Samples) -> NDArray[np.float32]:
        return np.fromiter((learn_features(model, *each) for each in features_of(samples)), np.float32, len(samples))

    return Other(f"river {version('river')} LogisticRegression, AdaGrad({RATE:g})", learn)


def linear_model() -> Any:
    try:
        from river import linear_model, optim
    except ImportError as error:
        raise MissingProgram(
            "River cannot be compared with: the package 'river' is missing; expected it beside Freshet; pip install "
            "river"
        ) from error
    return linear_model.LogisticRegression(optimizer=optim.AdaGrad(RATE))


def pairs_model() -> Any:
    """Its closest relative to our model: an embedding for each feature, and products of pairs."""
    from river import facto, optim

    return facto.FMClassifier(
        n_factors=FACTORS, weight_optimizer=optim.AdaGrad(RATE), latent_optimizer=optim.AdaGrad(RATE), seed=0
    )


def learn_features(model: Any, features: Features, is_click: bool) -> float:
    """The logit of a sample, predicted before it is learnt from."""
    logit = logit_of(model.predict_proba_one(features).get(True, 0.5))
    model.learn_one(features, is_click)
    return logit


def features_of(samples: Samples) -> Iterator[tuple[Features, bool]]:
    """Samples as River takes them: features by name, and whether there was a click."""
    for label, keys, floats in zip(
        samples.labels_B.tolist(), samples.keys_BF.tolist(), samples.dense_BN.tolist(), strict=True
    ):
        features: dict[int | str, float] = dict.fromkeys(keys, 1.0)
        features |= {f"i{place}": value for place, value in enumerate(floats) if value}
        yield features, bool(label)
