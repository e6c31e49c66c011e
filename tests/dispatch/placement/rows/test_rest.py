"""The rest of a decision, done while its order is on its way."""

import threading

import numpy as np
import pytest

from dispatch.placement.rows import rest
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import Index
from dispatch.placement.rows.rest import SMALLEST, LeftOver
from infra.base.distinct import number_keys


def test_little_work_is_done_at_once_and_much_by_another_thread() -> None:
    left, threads = LeftOver(), list[str]()
    for rows in (SMALLEST - 1, SMALLEST):
        left.leave(lambda: threads.append(threading.current_thread().name), rows)
    left.wait()
    assert threads[0] == threading.current_thread().name
    assert threads[1].startswith("rest-of-decision")


def test_an_error_is_raised_where_the_result_is_needed_and_only_once() -> None:
    left = LeftOver()
    left.leave(_fail, SMALLEST)
    with pytest.raises(ValueError, match="of the other thread"):
        left.wait()
    left.wait()


def _fail() -> None:
    raise ValueError("of the other thread")


def test_plans_do_not_depend_on_who_does_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for smallest in (0, 1 << 30):
        monkeypatch.setattr(rest, "SMALLEST", smallest)
        draw = np.random.default_rng(2)
        index, directory = Index(), Directory(np.full(3, 60, np.int64), "lru", 2, write_behind=0.5)
        seen = []
        for step in range(1, 60):
            rows = index.resolve(number_keys((draw.random((24, 2)) ** 3 * 400).astype(np.uint64)))
            plan = directory.plan(step, rows, draw.integers(0, 3, 24).astype(np.int32))
            moved = [each.rows.tolist() for w in plan.workers for each in (w.push_owned, w.push_parts, w.pull_full)]
            seen.append((moved, [directory.holders(row) for row in rows.rows_U.tolist()[:5]]))
        told.append((seen, [each.push_owned.rows.tolist() for each in directory.flush().workers]))
    assert told[0] == told[1]
