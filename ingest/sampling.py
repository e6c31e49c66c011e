"""Down-sampling of negatives, the samples without a click, and the weights that correct for it.

With several labels, a sample is a negative if none of its labels is 1.

Of a stream with few clicks a share of the negatives teaches almost as much as all of them. Each one that is kept counts
for those that are not: it weighs the inverse of the share, in the loss and in metrics, so that predictions remain those
of the whole stream. Which ones are kept follows from a hash of the event's time and its place in its partition, so a
replay keeps the same ones, whoever trains them.

Legend: B samples.
"""

import numpy as np
from numpy.typing import NDArray

from ingest.crosses import mix
from ingest.samples import Samples
from ingest.schema import Schema


def is_sampled(schema: Schema) -> bool:
    """Whether the negatives of a stream are not all of those that there were."""
    return schema.negative_weight != 1


def weigh_negatives(samples: Samples, schema: Schema) -> NDArray[np.float32]:
    """The weights of samples, with the correction for negatives that are missing."""
    weights_B = np.ones(len(samples), np.float32) if samples.weights_B is None else samples.weights_B
    corrected_B = weights_B * np.float32(schema.negative_weight)
    return np.where(are_negative(samples), corrected_B, weights_B)


def are_negative(samples: Samples) -> NDArray[np.bool_]:
    """Which samples have no label that is 1."""
    is_negative_B = samples.labels_B < 0.5
    return (
        is_negative_B if samples.more_labels_BL is None else is_negative_B & ~(samples.more_labels_BL == 1).any(axis=1)
    )


def choose_samples(samples: Samples, at_B: NDArray[np.int64], schema: Schema) -> NDArray[np.bool_]:
    """Which samples are kept; at_B: offset and index of each (B × 2)."""
    hashes_B = mix(at_B[:, 0].astype(np.uint64))
    hashes_B = mix(hashes_B ^ at_B[:, 1].astype(np.uint64))
    hashes_B = mix(hashes_B ^ samples.times_B.view(np.uint64))
    shares_B = (hashes_B >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return ~are_negative(samples) | (shares_B < schema.keep_negatives)
