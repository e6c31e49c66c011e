"""Counts, in one pass over the samples of a batch, how many have a value of each field.

Legend: B samples, F keys, N dense floats, S fields of events that the schema uses.
"""

import numpy as np
from numpy.typing import NDArray

from infra.base.kernels import kernel
from ingest.presence import has_value, witnesses_of
from ingest.samples import Samples
from ingest.schema import Schema

ABSENT_BITS = np.uint32(0x80000000)
"""Bits of the float -0.0."""


def count_present(samples: Samples, schema: Schema) -> NDArray[np.int64]:
    """Samples with a value, per field."""
    return count_values(samples.keys_BF, samples.dense_BN.view(np.uint32), *witnesses_of(schema))


def count_present_reference(samples: Samples, schema: Schema) -> NDArray[np.int64]:
    """The same, computed field by field."""
    witnesses = witnesses_of(schema)
    counts = [int(has_value(samples, witnesses, field).sum()) for field in range(len(schema.sources))]
    return np.array(counts, np.int64)


@kernel
def count_values(
    keys_BF: NDArray[np.uint64],
    bits_BN: NDArray[np.uint32],
    key_S: NDArray[np.int64],
    absent_S: NDArray[np.uint64],
    dense_S: NDArray[np.int64],
) -> NDArray[np.int64]:
    present_S = np.zeros(key_S.size, np.int64)
    for b in range(keys_BF.shape[0]):
        for field in range(key_S.size):
            if key_S[field] >= 0:
                present_S[field] += keys_BF[b, key_S[field]] != absent_S[field]
            else:
                present_S[field] += bits_BN[b, dense_S[field]] != ABSENT_BITS
    return present_S
