"""What tests draw: every case runs on some day, and all processes of a run draw the same."""

from datetime import date, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tests import fuzzing
from tests.fuzzing import DAY, SEED, pytest_configure, pytest_configure_node, repeating, share_of_day

TODAY = date(2026, 11, 16)


class PretendConfig:
    """The options of a command line, and the values that a process gets from the one that started it."""

    def __init__(self, workerinput: dict[str, Any] | None = None, **options: Any) -> None:
        self._options, self.stash = {"fuzz-rounds": 1, **options}, pytest.Stash()
        if workerinput is not None:
            self.workerinput = workerinput

    def getoption(self, name: str) -> Any:
        return self._options.get(name.removeprefix("--"))

    def addinivalue_line(self, name: str, line: str) -> None:
        pass


def configured(monkeypatch: pytest.MonkeyPatch, **given: Any) -> Any:
    monkeypatch.setattr(fuzzing, "_drawn", None)
    config: Any = PretendConfig(**given)
    pytest_configure(config)
    return config


@pytest.mark.parametrize("a_day", [1, 2, 5, 23, 99])
def test_after_some_days_every_case_has_run_and_none_twice_in_a_day(a_day: int) -> None:
    cases = [f"case {number}" for number in range(23)]
    shares = [share_of_day(cases, a_day, TODAY + timedelta(days=day)) for day in range(-(-len(cases) // a_day))]
    assert {case for share in shares for case in share} == set(cases)
    assert all(len(set(share)) == len(share) == min(a_day, len(cases)) for share in shares)


def test_a_seed_is_drawn_or_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({configured(monkeypatch).stash[SEED] for _ in range(5)}) > 1
    config = configured(monkeypatch, seed=7, day=TODAY)
    assert repeating(config) == "--seed 7 --day 2026-11-16"
    assert fuzzing.seed_and_rounds() == (7, 1)


def test_processes_of_a_run_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(monkeypatch, day=TODAY)
    node = SimpleNamespace(config=config, workerinput={})
    pytest_configure_node(node)
    other = configured(monkeypatch, workerinput=node.workerinput)
    assert (other.stash[SEED], other.stash[DAY]) == (config.stash[SEED], TODAY)
