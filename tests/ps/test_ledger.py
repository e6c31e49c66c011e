"""The shard's ledger."""

import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps.ledger import ENTRIES, KNOWN_ENTRIES, LedgerEntries
from ps.protocol import LedgerArrays

MOVED = LedgerArrays._fields[3:]
COUNTS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 2), st.sampled_from(MOVED), st.integers(0, 1 << 40))
)


@given(COUNTS, st.integers(1, 12), st.integers(1, 12))
def test_lines_equal_a_plain_reference_whatever_order_rounds_come_in(
    counts: list[tuple[int, int, int, str, int]], limit: int, known: int
) -> None:
    entries, reference = LedgerEntries(limit), dict[tuple[int, int, int], Counter[str]]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ps.ledger.KNOWN_ENTRIES", known)
        for step, phase, worker, column, number in counts:
            entries.count((step, phase), worker, **{column: number})
            reference.setdefault((step, phase, worker), Counter())[column] += number
            if len(reference) > limit:
                del reference[next(iter(reference))]
    expected = [[*key, *(entry[column] for column in MOVED)] for key, entry in reference.items()]
    assert np.stack(entries.columns(), axis=1).tolist() == expected


def test_a_full_ledger_takes_little_more_than_its_numbers() -> None:
    tracemalloc.start()
    try:
        entries = LedgerEntries()
        for number in range(ENTRIES + 8):
            entries.count((number // 8, 0), number % 8, pulled=500, owned=300, dense_pushed=70_000)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(entries.columns().step) == ENTRIES
    assert taken < 64 * ENTRIES + 512 * KNOWN_ENTRIES


def test_columns_that_were_handed_out_stay_as_they_are() -> None:
    entries = LedgerEntries()
    entries.count((1, 0), 0, pulled=1)
    handed_out = entries.columns()
    entries.count((1, 0), 0, pulled=1)
    assert handed_out.pulled.tolist() == [1]


def test_counts_of_one_round_and_worker_share_a_line() -> None:
    entries = LedgerEntries()
    entries.count((3, 0), 1, owned=4, parts=5)
    entries.count((3, 0), 0, pulled=7, dense_pushed=6)
    entries.count((3, 0), 1, pulled=2)
    assert np.stack(entries.columns(), axis=1).tolist() == [[3, 0, 1, 2, 4, 5, 0, 0], [3, 0, 0, 7, 0, 0, 6, 0]]


def test_oldest_lines_are_dropped_at_the_limit() -> None:
    entries = LedgerEntries(limit=2)
    for step in range(5):
        entries.count((step, 0), 0, pulled=1)
    assert entries.columns().step.tolist() == [3, 4]


def test_empty_ledger_has_empty_columns() -> None:
    assert [column.tolist() for column in LedgerEntries().columns()] == [[]] * 8
