from types import SimpleNamespace
from typing import Any

import pytest

from tests.failures import Failures


def told(report: Any) -> list[str]:
    """The lines that a report adds to the output."""
    lines: list[str] = []
    reporter = SimpleNamespace(write_line=lambda line, **_: lines.append(line))
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin={"terminalreporter": reporter}.get))
    Failures(config).pytest_runtest_logreport(report)
    return lines


@pytest.mark.parametrize(
    ("crash", "why"),
    [(SimpleNamespace(message="AssertionError: 1\nand more"), "AssertionError: 1"), (None, "")],
)
def test_a_failure_is_told_at_once(crash: Any, why: str) -> None:
    longrepr = SimpleNamespace(reprcrash=crash)
    report = SimpleNamespace(failed=True, when="call", nodeid="tests/test_a.py::test_b", longrepr=longrepr)
    assert told(report) == ["", f"call of tests/test_a.py::test_b failed: {why}"]


def test_nothing_is_told_of_what_passes() -> None:
    assert told(SimpleNamespace(failed=False, when="call", nodeid="tests/test_a.py::test_b", longrepr=None)) == []
