import socket

import pytest

from tests.ports import RANGES, free_port, own_range


def test_ports_come_in_turn_and_none_that_is_taken() -> None:
    first = free_port()
    with socket.socket() as server:
        server.bind(("127.0.0.1", following := free_port()))
        server.listen()
        others = [free_port() for _ in range(50)]
    assert len({first, following, *others}) == 52
    assert set(others) <= set(own_range())


def test_processes_of_a_suite_have_ranges_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    for number in range(RANGES):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{number}")
        assert not seen & set(own_range())
        seen |= set(own_range())
