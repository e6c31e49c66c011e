"""How long tests take that could go on for hours: each has a short default.

Fuzzers have a fixed seed, and ``--fuzz-rounds`` multiplies their cases. ``--all-faults`` adds a run of its own for
every place at which a process can fail.
"""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "Run fuzzers so many times as long as by default."
    parser.addoption("--fuzz-rounds", type=int, default=1, metavar="N", help=text)
    text = "Also run the tests that take a run of their own for every fault point."
    parser.addoption("--all-faults", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "one_by_one: what other tests cover together; runs with --all-faults alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--all-faults"):
        left_out = [item for item in items if item.get_closest_marker("one_by_one")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def fuzz_rounds(request: pytest.FixtureRequest) -> int:
    """By how much a fuzzer multiplies its number of cases; 1 by default."""
    return int(request.config.getoption("--fuzz-rounds"))
