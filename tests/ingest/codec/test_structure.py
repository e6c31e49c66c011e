import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.codec.json_events import JsonCodec
from ingest.codec.nesting import MOST_DEPTH, is_too_deep
from ingest.codec.structure import CLEAR, DEEP, NAMES, TOO_DEEP, UNSURE, count_items, has_duplicates, scan_structure
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
    found = scan_structure(payloads).tolist()
    assert [kind == UNSURE and has_duplicates(payload) for kind, payload in zip(found, payloads, strict=True)] == [
        has_duplicates(payload) for payload in payloads
    ]


bytes_of_json = st.text(alphabet='{}[]",:\\a', max_size=400).map(str.encode)


@given(st.lists(bytes_of_json.map(lambda text: text.replace(b"a", b'{"x":[' * 8)), max_size=4))
def test_the_kernel_finds_the_depth_that_the_reference_finds(payloads: list[bytes]) -> None:
    assert [kind == DEEP for kind in scan_structure(payloads).tolist()] == [is_too_deep(p) for p in payloads]


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"x":', "}"), ('{"\\"":[', "]}")])
def test_nesting_is_allowed_up_to_the_limit(opened: str, closed: str) -> None:
    levels = MOST_DEPTH // len(closed)
    at_limit = (opened * levels + '"[[{{"' + closed * levels).encode()
    beyond = (opened * (levels + 1) + "1" + closed * (levels + 1)).encode()
    assert (is_too_deep(at_limit), is_too_deep(beyond)) == (False, True)
    assert scan_structure([at_limit, beyond, b"{}"]).tolist()[1:] == [DEEP, CLEAR]


@pytest.mark.parametrize("frames", [0, 700])
def test_what_is_trained_does_not_depend_on_the_caller_s_stack(frames: int) -> None:
    if frames:
        test_what_is_trained_does_not_depend_on_the_caller_s_stack(frames - 1)
        return
    unknown = ("[" * levels + "]" * levels for levels in (MOST_DEPTH - 2, MOST_DEPTH - 1, 960))
    payloads = [f'{{"event_time":1,"label":0,"fields":{{"x":{value}}}}}'.encode() for value in unknown]
    _, faults = JsonCodec(SYNTHETIC).decode(payloads)
    assert faults == dict.fromkeys((1, 2), f"too deep: more than {MOST_DEPTH} objects and lists inside each other")


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
        (f'"unknown": {nested(MOST_DEPTH - 2, "1")}', True),
        (f'"unknown": {nested(MOST_DEPTH - 3, nested(1, "1")[:-1] + ", " + nested(1, "1")[1:])}', False),
    ],
)
def test_an_event_that_gives_a_name_twice_is_rejected(fields: str, is_good: bool) -> None:
    payload = f'{{"event_time": 1, "label": 0, "fields": {{{fields}}}}}'.encode()
    _, faults = JsonCodec(SYNTHETIC).decode([payload])
    assert (not faults) == is_good
    assert all("a name is given twice" in reason for reason in faults.values())


@given(st.lists(values, min_size=1, max_size=9), st.integers(1, 6))
def test_the_values_of_a_list_are_counted_up_to_the_most(listed: list[Any], most: int) -> None:
    assert count_items(b" " + json.dumps(listed).encode(), most) == min(len(listed), most + 1)


def test_a_list_that_is_nested_too_deeply_is_not_counted() -> None:
    assert count_items(b"[" * MOST_DEPTH + b"]" * MOST_DEPTH, 9) == 1
    assert count_items(b"[1," + b"[" * MOST_DEPTH, 9) == TOO_DEEP
