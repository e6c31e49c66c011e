"""Arrays that grow without being copied, so that growing takes as long for ten million rows as for ten.

An array reserves addresses for as many rows as the machine's memory could hold, and nothing else: the system provides
memory page by page, when a page is first written to, and until then it reads as zero. Rows never move, so earlier views
stay valid.

Where addresses are limited, or count as memory in use (strict overcommit), nothing is reserved: the array then doubles,
and is copied, whenever it is full.
"""

import mmap
import os
import platform
import resource
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
STRICT = "2"
NO_RESERVE = 0x4000 if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") else 0
"""MAP_NORESERVE, which Python's mmap does not name in every version."""


@cache
def reservable_bytes() -> int:
    """Addresses that an array may reserve: as many as the machine has memory, or none if they are limited."""
    is_strict = OVERCOMMIT.exists() and OVERCOMMIT.read_text().strip() == STRICT
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    return 0 if is_strict or is_limited else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class GrowingArray:
    """Rows of numbers, or single numbers, all zero at first."""

    def __init__(self, dtype: DTypeLike, columns: int | None = None, reserved_bytes: int | None = None) -> None:
        """columns: of a row; None for single numbers. reserved_bytes: None: as many as may be reserved."""
        self._rows = np.zeros((0,) if columns is None else (0, columns), dtype)
        row_bytes = self._rows.itemsize * (columns or 1)
        rows = (reservable_bytes() if reserved_bytes is None else reserved_bytes) // row_bytes
        if rows:
            with suppress(OSError):
                self._rows = np.frombuffer(_addresses(rows * row_bytes), dtype).reshape(rows, *self._rows.shape[1:])

    def first(self, rows: int) -> NDArray[Any]:
        """The first so many rows. They change place only if there are more than was reserved."""
        if rows > len(self._rows):
            larger = np.zeros((2 * rows, *self._rows.shape[1:]), self._rows.dtype)
            larger[: len(self._rows)] = self._rows
            self._rows = larger
        return self._rows[:rows]


def _addresses(nbytes: int) -> mmap.mmap:
    """Memory that is provided when it is used. np.zeros would do, but may write to all of it.

    Unless the system is told that it need not keep room for them, a process with several such arrays cannot be forked.
    """
    addresses = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    with suppress(OSError, AttributeError):  # a system without large pages
        addresses.madvise(mmap.MADV_HUGEPAGE)
    return addresses
