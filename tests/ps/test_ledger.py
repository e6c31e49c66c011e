"""The shard's ledger."""

import numpy as np

from ps.ledger import LedgerLines


def test_counts_of_one_round_and_worker_share_a_line() -> None:
    lines = LedgerLines()
    lines.count((3, 0), 1, owned=4, parts=5)
    lines.count((3, 0), 0, pulled=7, dense_pushed=6)
    lines.count((3, 0), 1, pulled=2)
    assert np.stack(lines.columns(), axis=1).tolist() == [[3, 0, 1, 2, 4, 5, 0, 0], [3, 0, 0, 7, 0, 0, 6, 0]]


def test_oldest_lines_are_dropped_at_the_limit() -> None:
    lines = LedgerLines(limit=2)
    for step in range(5):
        lines.count((step, 0), 0, pulled=1)
    assert lines.columns().step.tolist() == [3, 4]


def test_empty_ledger_has_empty_columns() -> None:
    assert [column.tolist() for column in LedgerLines().columns()] == [[]] * 8
