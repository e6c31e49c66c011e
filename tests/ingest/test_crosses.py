"""Keys of crosses: the same however an event came, and told apart from all others."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ingest.codec.json_events import JsonCodec, encode_json
from ingest.codec.packed import PackedCodec
from ingest.convert import Event
from ingest.crosses import add_crosses, cross_key
from ingest.names import find_names
from ingest.schema import parse_schema, without_crosses

CROSSED = parse_schema(
    """
    name = "crossed"
    tables = [{name = "user"}, {name = "tags", values = 2}, {name = "item"}, {name = "age", bucket = "log_square"}]
    crosses = [["user", "item"], ["age", "item"], ["user", "item", "age"]]
    """,
    "crossed",
)
EVENTS = [
    Event(float(number), number % 2, {"user": f"u{number % 3}", "item": number % 2, "tags": ["a"], "age": 20 * number})
    for number in range(12)
]
ABSENT = Event(1.0, 0, {"user": "u1"})


@given(st.lists(st.integers(0, 2**64 - 1), min_size=5, max_size=5))
def test_keys_of_many_samples_are_those_of_single_ones(keys: list[int]) -> None:
    (found,) = add_crosses(np.array([keys], np.uint64), CROSSED).tolist()
    assert found[:5] == keys
    user, item, age = keys[0], keys[3], keys[4]
    names = CROSSED.cross_names
    assert found[5:] == [
        cross_key(names[0], [user, item]),
        cross_key(names[1], [age, item]),
        cross_key(names[2], [user, item, age]),
    ]


def test_packed_records_have_no_crosses_and_give_the_samples_of_json() -> None:
    codec, plain = PackedCodec(CROSSED), PackedCodec(without_crosses(CROSSED))
    events = [*EVENTS, ABSENT]
    record = codec.encode_events(events)
    assert record == plain.encode_events(events)
    expected, faults = JsonCodec(CROSSED).decode([encode_json(event) for event in events])
    assert not faults
    assert expected.keys_BF.shape == (13, 8)
    assert codec.decode([record])[0].equals(expected)
    assert codec.decode([codec.encode(expected)])[0].equals(expected)


def test_each_combination_has_a_key_of_its_own() -> None:
    samples, _ = JsonCodec(CROSSED).decode([encode_json(event) for event in EVENTS])
    pairs = {(event.fields["user"], event.fields["item"]) for event in EVENTS}
    assert len(set(samples.keys_BF[:, 5].tolist())) == len(pairs) == 6
    assert not {*samples.keys_BF[:, 5].tolist()} & {*samples.keys_BF[:, [0, 3, 4, 6, 7]].reshape(-1).tolist()}


def test_a_key_of_a_cross_is_named_by_its_values() -> None:
    payloads = [encode_json(event) for event in [*EVENTS, ABSENT]]
    samples, _ = JsonCodec(CROSSED).decode(payloads)
    wanted = samples.keys_BF[[1, 12], 7].tolist()
    names = find_names(wanted, CROSSED, iter(payloads))
    assert [(names[key].field, names[key].value) for key in wanted] == [
        ("user×item×age", '"u1", 1, 20 to 22'),
        ("user×item×age", '"u1", null, null'),
    ]
