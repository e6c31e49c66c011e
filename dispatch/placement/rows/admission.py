"""Which keys get a row: at once, after so many samples, or by chance. Until then a key is *rare*.

The rare keys of a field share one row, under a key of its own: they are trained and predicted with it, and a table
whose keys mostly occur once stays small. What was decided about each unknown key is recorded with the step, so neither
the counts nor the settings are needed to repeat it. Counts begin anew when the dispatcher does.

Keys are counted approximately, in a fixed amount of memory: each has four of M counters, the least of which counts, and
only those that are least are raised. When M / 8 samples of unknown keys have been counted, all counters are halved, so
old ones lose their weight.

Legend: B samples, F keys per sample, M counters, K unknown keys of a batch, in order, repeated ones included.
"""

from typing import Any, NamedTuple

import numpy as np

from dispatch.placement.arrays import I64, U8, U64, Bool
from infra.base.kernels import kernel
from infra.base.mixing import GAMMA, mix, mix_reference

PLACES = 4
"""Counters of a key."""
COUNTED_SHARE = 8
"""One sample is counted for so many counters before all are halved."""
CERTAIN = 1.0


class AdmissionTerms(NamedTuple):
    """How keys are admitted."""

    after: int = 1
    """The sample with which a key gets a row; 1: the first one that has it."""
    share: float = CERTAIN
    """Probability with which it gets one in a step that has it."""
    filter_bytes: int = 1 << 20
    """M, a power of two."""

    @property
    def is_needed(self) -> bool:
        """Whether any key may have to wait."""
        return self.after > 1 or self.share < CERTAIN


class Admission:
    """Admits unknown keys, batch after batch."""

    def __init__(self, terms: AdmissionTerms, rare_F: U64, seed: int = 0) -> None:
        """rare_F: the key under which rare keys of each column share a row."""
        self.terms = terms
        self.rare = 0
        """Samples' keys so far that were rare."""
        self._rare_F = rare_F
        self._seed = seed
        self._counts_M = np.zeros(terms.filter_bytes if terms.after > 1 else 0, np.uint8)
        self._counted = 0

    def admit(self, step: int, keys_BF: U64, is_known_BF: Bool) -> tuple[U64, bytes]:
        """Keys with the rare ones replaced, and which of the unknown ones were admitted, a bit each, for ``repeat``."""
        unknown_K = np.flatnonzero(~is_known_BF.reshape(-1))
        keys_K = keys_BF.reshape(-1)[unknown_K]
        if self.terms.after > 1:
            is_admitted_K = self._count(keys_K)
        else:
            is_admitted_K = draw(keys_K, step, self._seed, self.terms.share)
        return self._replace(keys_BF, unknown_K, is_admitted_K), np.packbits(is_admitted_K).tobytes()

    def repeat(self, keys_BF: U64, is_known_BF: Bool, recorded: bytes) -> U64:
        """What ``admit`` returned, from its record."""
        unknown_K = np.flatnonzero(~is_known_BF.reshape(-1))
        bits = np.unpackbits(np.frombuffer(recorded, np.uint8))
        is_admitted_K = np.zeros(unknown_K.size, np.bool_)
        is_admitted_K[: bits.size] = bits[: unknown_K.size]
        return self._replace(keys_BF, unknown_K, is_admitted_K)

    def _count(self, keys_K: U64) -> Bool:
        is_admitted_K = np.empty(keys_K.size, np.bool_)
        self._counted += _count(keys_K, self._counts_M, self.terms.after, is_admitted_K)
        if self._counted >= self._counts_M.size // COUNTED_SHARE:
            self._counts_M >>= 1
            self._counted = 0
        return is_admitted_K

    def _replace(self, keys_BF: U64, unknown_K: I64, is_admitted_K: Bool) -> U64:
        rare_K = unknown_K[~is_admitted_K]
        self.rare += rare_K.size
        if not rare_K.size:
            return keys_BF
        keys = keys_BF.reshape(-1).copy()
        keys[rare_K] = self._rare_F[rare_K % self._rare_F.size]
        return keys.reshape(keys_BF.shape)


@kernel
def _count(keys_K: U64, counts_M: U8, after: int, is_admitted_K: Bool) -> int:
    """Counts keys; returns how many samples were counted."""
    mask = np.uint64(counts_M.size - 1)
    places = np.empty(PLACES, np.int64)
    counted = 0
    for k in range(keys_K.size):
        first = mix(keys_K[k])
        stride = mix(first) | np.uint64(1)
        least = 255
        for i in range(PLACES):
            places[i] = np.int64((first + np.uint64(i) * stride) & mask)
            least = min(least, int(counts_M[places[i]]))
        is_admitted_K[k] = least + 1 >= after
        if not is_admitted_K[k]:
            counted += 1
            for i in range(PLACES):
                if counts_M[places[i]] == least:
                    counts_M[places[i]] = least + 1
    return counted


def count_reference(counts: dict[int, int], keys: list[int], after: int) -> list[bool]:
    """What is admitted if counting is exact."""
    admitted = []
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
        admitted.append(counts[key] >= after)
    return admitted


def draw(keys_K: U64, step: int, seed: int, share: float) -> Bool:
    """Whether each key is admitted by chance, the same for all samples of a step."""
    is_drawn_K = np.ones(keys_K.size, np.bool_)
    if share < CERTAIN:
        salt = mix_reference(mix_reference(seed + GAMMA) ^ step)
        _draw(keys_K, np.uint64(salt), np.uint64(share * 2.0**64), is_drawn_K)
    return is_drawn_K


@kernel
def _draw(keys_K: U64, salt: Any, limit: Any, is_drawn_K: Bool) -> None:
    for k in range(keys_K.size):
        is_drawn_K[k] = mix(keys_K[k] ^ salt) < limit
