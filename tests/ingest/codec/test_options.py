"""Options of a schema that take what would be rejected: long lists, and numbers given as text."""

import json
from typing import Any

import numpy as np
import pytest

from ingest.codec.json_events import JsonCodec
from ingest.codec.packed import PackedCodec
from ingest.convert import Converter, Event
from ingest.keys import key_of
from ingest.samples import Samples
from ingest.schema import parse_schema

SCHEMA = parse_schema(
    """
    name = "mine"
    tables = [
        {name = "tags", values = 2, truncate = true},
        {name = "more", values = 2},
        {name = "idle", bucket = "log_square", coerce = true},
    ]
    dense_fields = [{name = "price", coerce = true, transform = "identity"}, {name = "age"}]
    """,
    "mine",
)


def decoded(**fields: Any) -> tuple[Samples, dict[int, str]]:
    return JsonCodec(SCHEMA, needs_label=False).decode([json.dumps({"fields": fields}).encode()])


def test_a_long_list_keeps_its_first_values_where_the_schema_says_so() -> None:
    samples, faults = decoded(tags=["a", "b", "c"])
    assert not faults
    assert samples.keys_BF[0, :2].tolist() == [key_of("tags", "a"), key_of("tags", "b")]
    assert "too many values: field 'more' has 3, at most 2" in decoded(more=["a", "b", "c"])[1][0]


@pytest.mark.parametrize(
    ("text", "number"), [("12", 12), ("12.50", 12.5), ("+3", 3), ("1e3", 1000), (".5", 0.5), ("7.", 7), (" 4\n", 4)]
)
def test_a_number_given_as_text_is_that_number(text: str, number: float) -> None:
    given, expected = decoded(price=text, idle=text)[0], decoded(price=number, idle=number)[0]
    assert given.dense_BN.tolist() == expected.dense_BN.tolist()
    assert given.keys_BF.tolist() == expected.keys_BF.tolist()


def test_an_empty_text_is_no_number() -> None:
    assert np.array_equal(decoded(price="", idle=" ")[0].dense_BN, decoded()[0].dense_BN)
    assert np.array_equal(decoded(price="", idle=" ")[0].keys_BF, decoded()[0].keys_BF)


@pytest.mark.parametrize("text", ["abc", "1_000", "1,5", "٣", "nan", "inf", "0x10", "1 2", "--1", "e5", "."])
def test_a_text_that_is_no_number_is_rejected(text: str) -> None:
    _, faults = decoded(price=text)
    assert faults == {0: f"wrong type: field 'price' is the text {text!a}, expected a number"}


def test_a_text_beyond_every_float_is_rejected() -> None:
    assert decoded(price="1e999")[1][0].startswith("not finite: field 'price'")
    assert decoded(price="-1")[1][0].startswith("negative: field 'price'")


def test_other_numbers_must_be_numbers() -> None:
    assert decoded(age="12")[1][0].startswith("wrong type: ")


def test_an_event_in_memory_is_taken_the_same_way() -> None:
    event = Event(event_time=1.0, label=1, fields={"price": "12.5", "tags": ["a", "b", "c"]})
    samples, faults = Converter(SCHEMA).convert_events([event])
    assert (faults, samples.dense_BN[0, 0]) == ({}, 12.5)
    assert PackedCodec(SCHEMA).encode_events([event])
    assert Converter(SCHEMA).convert_events([Event(1.0, 1, {"age": "12"})])[1]


def test_payloads_with_unknown_fields_are_told_and_decoded_as_before() -> None:
    lines = [
        json.dumps({"fields": fields}).encode() for fields in ({"price": 1}, {"prize": 2, "price": 1}, {"age": "x"})
    ]
    unknown: list[bytes] = []
    codec = JsonCodec(SCHEMA, needs_label=False)
    samples, faults = codec.decode(lines, unknown)
    plain, plain_faults = codec.decode(lines)
    assert unknown == [lines[1]]
    assert faults == plain_faults
    assert np.array_equal(samples.dense_BN, plain.dense_BN)
