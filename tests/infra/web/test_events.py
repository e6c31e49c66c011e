"""Bodies of events, split before anything is made of them."""

import tracemalloc

import pytest

from infra.web.errors import TooLarge
from infra.web.events import split_events


@pytest.mark.parametrize("body", [b"[" + b"1," * 3_000_000 + b"1]", b"1\n" * 3_000_000])
def test_what_has_too_many_events_is_refused_before_they_are_made(body: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match="more than 1000 events"):
            split_events(body, 1000)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(body)
    finally:
        tracemalloc.stop()


def test_as_many_events_as_may_come_are_taken() -> None:
    assert split_events(b"\n" * 10_000 + b"1", 1) == [b"1"]
    assert split_events(b"[1, 2]", 2) == split_events(b"1\r\n\n2\n\n", 2) == [b"1", b"2"]
