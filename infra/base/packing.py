"""The forms in which an array is sent: its own type, or a narrower one that restores the same bits.

A field of a message lists its forms in its annotation, narrowest first; the last one is the type of the array itself,
in which it is given and received. The sender uses the narrowest form that holds every element; one byte says which.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BITS = "bits"
"""The form of floats that are all 0 or 1: a bit for each, low bits first, then a 1 that marks the end."""
ONE = np.float32(1).view(np.uint32)


class Forms:
    """An array's own type, and nothing narrower."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        """Type of the array as it is given and received."""
        self._empty: NDArray[Any] = np.empty(0, dtype)

    @property
    def narrower(self) -> int:
        """How many narrower forms there are: the index of the own type among the forms."""
        return 0

    def pack(self, array: NDArray[Any]) -> tuple[int, NDArray[Any]]:
        """The number of the form that a flat array takes, and the array in this form."""
        return self.narrower, array

    def unpack(self, number: int, buffer: Any) -> NDArray[Any]:
        """An array of the own type, which shares memory with the buffer if possible; raises ValueError.

        ZeroMQ may deliver short frames at odd addresses, which kernels and torch do not accept.
        """
        if number != self.narrower:
            raise ValueError(f"an array has form {number}; expected {self.narrower} at most")
        array = np.frombuffer(buffer, self.dtype)
        return array if array.flags.aligned else array.copy()

    def without_elements(self, number: int) -> NDArray[Any]:
        """The array of no bytes, which has form 0; raises ValueError."""
        if number:
            raise ValueError(f"an array without bytes has form {number}; expected 0")
        return self._empty


class IntegerForms(Forms):
    """Integers, also in unsigned types that are narrower; a negative number needs its own type."""

    def __init__(self, dtype: np.dtype[Any], narrower: Sequence[np.dtype[Any]]) -> None:
        super().__init__(dtype)
        self._unsigned = np.dtype(f"u{dtype.itemsize}")
        self._narrower = tuple(narrower)
        self._largest = [int(np.iinfo(each).max) for each in narrower]

    @property
    def narrower(self) -> int:
        return len(self._narrower)

    def pack(self, array: NDArray[Any]) -> tuple[int, NDArray[Any]]:
        largest = array.view(self._unsigned).max(initial=0)  # the sign bit makes negative numbers the largest
        number = bisect_left(self._largest, int(largest))
        return number, array if number == len(self._narrower) else array.astype(self._narrower[number])

    def unpack(self, number: int, buffer: Any) -> NDArray[Any]:
        if number < len(self._narrower):
            return np.frombuffer(buffer, self._narrower[number]).astype(self.dtype)
        return super().unpack(number, buffer)


class BitForms(Forms):
    """Single precision floats, also as BITS."""

    @property
    def narrower(self) -> int:
        return 1

    def pack(self, array: NDArray[Any]) -> tuple[int, NDArray[Any]]:
        stored = array.view(np.uint32)  # -0.0 is not a 0 here
        ones = stored == ONE
        if np.count_nonzero(ones) != np.count_nonzero(stored):
            return 1, array
        return 0, np.packbits(np.append(ones, True), bitorder="little")

    def unpack(self, number: int, buffer: Any) -> NDArray[Any]:
        if number:
            return super().unpack(number, buffer)
        stored = np.frombuffer(buffer, np.uint8)
        if not stored.size or not stored[-1]:
            raise ValueError(f"{stored.size} bytes of bits have no mark at their end")
        size = 8 * (stored.size - 1) + int(stored[-1]).bit_length() - 1
        return np.unpackbits(stored, count=size, bitorder="little").astype(self.dtype)


def forms_of(names: Sequence[str]) -> Forms:
    """The forms of these names: numpy's of types, or BITS; narrowest first."""
    *narrower, own = names
    if narrower == [BITS]:
        assert np.dtype(own) == np.float32, f"{own} as bits"
        return BitForms(np.dtype(own))
    return IntegerForms(np.dtype(own), [np.dtype(name) for name in narrower]) if narrower else Forms(np.dtype(own))
