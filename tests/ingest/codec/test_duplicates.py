import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.codec.duplicates import DEPTH, NAMES, find_duplicates, has_duplicates
from ingest.codec.json_events import JsonCodec
from tests.ingest.topics import SYNTHETIC


class Pairs(dict[str, Any]):
    """A JSON object in which a name may occur twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> Any:
        return self._pairs

    def __bool__(self) -> bool:
        return bool(self._pairs)


names = st.sampled_from(["a", "b", "user", 'quo"te', "back\\slash", "ä", "{", ""])
values = st.recursive(
    st.none() | st.integers() | names,
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(names, inner), max_size=4).map(Pairs),
    max_leaves=12,
)


@given(st.lists(st.lists(st.tuples(names, values), max_size=4).map(Pairs), max_size=4), st.booleans())
def test_the_kernel_finds_what_the_reference_finds(objects: list[Pairs], ascii_only: bool) -> None:
    payloads = [json.dumps(given, ensure_ascii=ascii_only).encode() for given in objects]
    expected = [row for row, payload in enumerate(payloads) if has_duplicates(payload)]
    assert find_duplicates(payloads) == expected


def nested(depth: int, inner: str) -> str:
    return '{"x":' * depth + inner + "}" * depth


@pytest.mark.parametrize(
    ("fields", "is_good"),
    [
        ('"user": 1, "item": 2', True),
        ('"user": 1, "item": 2, "user": 1', False),
        ('"user": 1, "us\\u0065r": 2', False),
        ('"user": 1, "unknown": {"user": 2}', True),
        ('"unknown": {"a": 1, "a": 1}', False),
        ('"unknown": [{"a": 1}, {"a": 1}]', True),
        ('"user": "a,\\"user\\":{", "item": "user"', True),
        (", ".join(f'"n{i}": 0' for i in range(3 * NAMES)), True),
        (", ".join(f'"n{i}": 0' for i in (*range(3 * NAMES), 5)), False),
        (f'"unknown": {nested(2 * DEPTH, "1")}', True),
        (f'"unknown": {nested(2 * DEPTH, nested(1, "1")[:-1] + ", " + nested(1, "1")[1:])}', False),
    ],
)
def test_an_event_that_gives_a_name_twice_is_rejected(fields: str, is_good: bool) -> None:
    payload = f'{{"event_time": 1, "label": 0, "fields": {{{fields}}}}}'.encode()
    _, faults = JsonCodec(SYNTHETIC).decode([payload])
    assert (not faults) == is_good
    assert all("a name is given twice" in reason for reason in faults.values())
