"""Arrays that grow in place, and those that have to be copied."""

import subprocess
import sys

import numpy as np
import psutil
import pytest

from infra.base.growing import GrowingArray, reservable_bytes

MANY = 1 << 27
"""rows of 16 bytes: 2 GiB of addresses"""


@pytest.mark.parametrize("reserved_bytes", [0, 64, 16 * MANY])
def test_rows_keep_their_values_and_new_ones_are_zero_whatever_is_reserved(reserved_bytes: int) -> None:
    growing = GrowingArray(np.uint64, 2, reserved_bytes)
    growing.first(3)[:] = [[1, 2], [3, 4], [5, 6]]
    assert growing.first(5).tolist() == [[1, 2], [3, 4], [5, 6], [0, 0], [0, 0]]
    assert growing.first(2).tolist() == [[1, 2], [3, 4]]


def test_rows_stay_where_they_are_while_there_is_room() -> None:
    growing = GrowingArray(np.int32, reserved_bytes=400)
    before = growing.first(10)
    growing.first(100)[3] = 7
    assert before[3] == 7
    growing.first(101)[3] = 8
    assert before[3] == 7, "the array has outgrown its room"


def test_a_process_whose_arrays_reserve_more_than_there_is_memory_can_be_forked() -> None:
    program = (
        "import os, numpy as np\n"
        "from infra.base.growing import GrowingArray\n"
        "arrays = [GrowingArray(np.int64) for _ in range(3)]\n"
        "child = os.fork()\n"
        "if not child: os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.stdout == "7\n", done.stderr


def test_addresses_that_are_not_used_take_no_memory() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    kept = [GrowingArray(np.uint64, 2, 16 * MANY) for _ in range(4)]
    for growing in kept:
        growing.first(MANY)[1000] = 1
    assert process.memory_info().rss - before < 256 << 20


def test_no_more_is_reserved_than_the_machine_has() -> None:
    assert reservable_bytes() in (0, psutil.virtual_memory().total)
