"""Values with weights: keys and shares of pooled tables, the same however an event came."""

import numpy as np
import pytest

from infra.base.errors import ConfigError
from ingest.codec.json_events import JsonCodec, encode_json
from ingest.codec.packed import PackedCodec
from ingest.convert import Event
from ingest.keys import absent_key, key_of
from ingest.names import find_names
from ingest.schema import ListPool, parse_schema

TEXT = """
name = "pooled"
tables = [{name = "user"}, {name = "tags", values = 3, pool = "sum", truncate = true}, {name = "item"},
          {name = "past", values = 2, pool = "mean"}]
"""
POOLED = parse_schema(TEXT, "pooled")
EVENTS = [
    Event(1.0, 1, {"user": "a", "tags": {"news": 0.7, "sport": 0.25}, "past": ["x", "y"]}),
    Event(2.0, 0, {"user": "b", "tags": ["news", "news", "sport", "more"], "past": {"x": 3, "y": 1}}),
    Event(3.0, 0, {"user": "c", "tags": {}, "past": "x"}),
]


def test_objects_lists_and_single_values_have_keys_and_shares() -> None:
    assert (POOLED.singles, POOLED.vectors, POOLED.pools) == (7, 4, (ListPool(1, 3), ListPool(5, 2)))
    samples, faults = JsonCodec(POOLED).decode([encode_json(event) for event in EVENTS])
    assert not faults
    assert samples.shares_BP is not None
    expected = [[0.7, 0.25, 0, 0.5, 0.5], [1, 1, 1, 0.75, 0.25], [1, 0, 0, 1, 0]]
    np.testing.assert_array_equal(samples.shares_BP, np.array(expected, np.float32))
    news, sport, x = key_of("tags", "news"), key_of("tags", "sport"), key_of("past", "x")
    assert samples.keys_BF[0, 1:4].tolist() == [news, sport, news], "padded with a row that is used anyway"
    assert samples.keys_BF[1, 1:4].tolist() == [news, news, sport]
    assert samples.keys_BF[2, 1:4].tolist() == [absent_key("tags")] * 3
    assert samples.keys_BF[2, 5:].tolist() == [x, x]


def test_packed_records_hold_the_same() -> None:
    codec = PackedCodec(POOLED)
    samples, _ = JsonCodec(POOLED).decode([encode_json(event) for event in EVENTS])
    assert codec.decode([codec.encode_events(EVENTS)])[0].equals(samples)
    assert samples.shares_BP is not None
    samples.shares_BP[1, 2] = np.nan
    assert codec.decode([codec.encode(samples)])[1][1].startswith("not finite: weight")


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        (b'{"a":-1}', "negative: a weight of field 'tags', expected 0 to 1e6"),
        (b'{"a":1e9}', "oversized: a weight of field 'tags', expected 0 to 1e6"),
        (b'{"a":null}', "wrong type: Expected `int | float`, got `null` - at `$.fields.tags[...]`"),
        (b'{"a":[1]}', "wrong type: Expected `int | float`, got `array` - at `$.fields.tags[...]`"),
    ],
)
def test_an_event_with_a_bad_weight_of_a_value_is_rejected(tags: bytes, reason: str) -> None:
    event = b'{"event_time":1,"label":0,"fields":{"tags":' + tags + b"}}"
    assert JsonCodec(POOLED).decode([event])[1] == {0: reason}


def test_a_pool_of_one_value_is_refused_and_a_pooled_schema_is_another_one() -> None:
    with pytest.raises(ConfigError, match="has pool and one value"):
        parse_schema('name = "a"\ntables = [{name = "x", pool = "sum"}]', "a")
    assert parse_schema(TEXT.replace('"mean"', '"sum"'), "other").fingerprint != POOLED.fingerprint


def test_a_weighed_value_is_found_by_its_key() -> None:
    sport = key_of("tags", "sport")
    assert find_names([sport], POOLED, iter([encode_json(EVENTS[0])]))[sport].value == '"sport"'


LISTS = """
name = "lists"
tables = [{name = "user"}, {name = "item"},
          {name = "past", values = 3, pool = "attention", query = "item", rows_of = "item"}]
"""


def test_values_of_a_list_have_the_keys_of_the_table_whose_rows_they_use() -> None:
    schema = parse_schema(LISTS, "lists")
    samples, _ = JsonCodec(schema).decode([b'{"event_time":1,"label":0,"fields":{"item":7,"past":["7",8]}}'])
    assert samples.keys_BF[0, 1:].tolist() == [key_of("item", value) for value in (7, 7, 8, 7)]
    assert schema.pools == (ListPool(2, 3, attends=True, query=1),)
    assert schema.key_tables == ("user", *["item"] * 4)
    assert parse_schema(LISTS.replace('query = "item", ', ""), "other").fingerprint != schema.fingerprint
    assert parse_schema(LISTS.replace(', rows_of = "item"', ""), "other").fingerprint != schema.fingerprint


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ('"attention"', '"mean"', "has a query and pool = 'mean'; expected query with pool = \"attention\""),
        ('query = "item"', 'query = "past"', "has the query 'past'; expected a table of one value: item, user"),
        ('rows_of = "item"', 'rows_of = "past"', "uses the rows of 'past'; expected a table with its own: item, user"),
        ('"user"}', '"user", bucket = "log_square", rows_of = "item"}', "has both a bucket and rows_of"),
    ],
)
def test_a_list_that_names_a_wrong_table_is_refused(before: str, after: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        parse_schema(LISTS.replace(before, after), "lists")
