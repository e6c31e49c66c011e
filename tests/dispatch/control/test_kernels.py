from collections.abc import Iterator
from contextlib import closing
from threading import Event

import pytest

from dispatch.control.kernels import PolicyKernels


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Policies whose kernels were compiled; the one named "broken" has none."""
    seen: list[str] = []

    def compile_kernels(policy: str, *_: object) -> None:
        seen.append(policy)
        if policy == "broken":
            raise ValueError(policy)

    monkeypatch.setattr("dispatch.control.kernels.warm_up", compile_kernels)
    return seen


@pytest.fixture
def kernels() -> Iterator[PolicyKernels]:
    with closing(PolicyKernels(7, "cpu")) as kernels:
        yield kernels


def test_the_kernels_of_a_policy_are_compiled_once(kernels: PolicyKernels, compiled: list[str]) -> None:
    kernels.await_compiled("het")
    assert kernels.are_compiled("het")
    assert compiled == ["het"]


def test_nobody_waits_while_kernels_are_compiled(kernels: PolicyKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = Event()
    monkeypatch.setattr("dispatch.control.kernels.warm_up", lambda *_: may_end.wait())
    assert not kernels.are_compiled("het")
    may_end.set()
    kernels.await_compiled("het")
    assert kernels.are_compiled("het")


def test_kernels_that_cannot_be_compiled_are_an_error(kernels: PolicyKernels, compiled: list[str]) -> None:
    for attempt in (kernels.await_compiled, kernels.are_compiled):
        with pytest.raises(ValueError, match="broken"):
            attempt("broken")
    assert compiled == ["broken"]
