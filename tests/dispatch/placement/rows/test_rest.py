"""The rest of a decision, done while its order is on its way."""

import numpy as np
import pytest

from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import Index
from infra.base import rest
from infra.base.distinct import number_keys


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
