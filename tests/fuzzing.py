"""How long fuzzers run: each has a fixed seed and a short default, which ``--fuzz-rounds`` multiplies."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "Run fuzzers so many times as long as by default."
    parser.addoption("--fuzz-rounds", type=int, default=1, metavar="N", help=text)


@pytest.fixture
def fuzz_rounds(request: pytest.FixtureRequest) -> int:
    """By how much a fuzzer multiplies its number of cases; 1 by default."""
    return int(request.config.getoption("--fuzz-rounds"))
