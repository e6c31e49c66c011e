"""Weights of samples: the same however an event came, and rejected with a reason if they cannot be used."""

import numpy as np
import pytest

from infra.base.errors import ConfigError
from ingest.codec.json_events import JsonCodec, encode_json
from ingest.codec.packed import PackedCodec
from ingest.convert import Converter, Event
from ingest.schema import parse_schema
from ingest.survey import Survey

TEXT = 'name = "weighed"\nweight = "worth"\ntables = [{name = "user"}]\ndense_fields = [{name = "age"}]'
WEIGHED = parse_schema(TEXT, "weighed")
EVENTS = [
    Event(1.0, 1, {"user": "a", "worth": 2.5}),
    Event(2.0, 0, {"user": "b"}),
    Event(3.0, 0, {"user": "c", "worth": None}),
    Event(4.0, 0, {"user": "d", "worth": 0}),
]


def test_json_and_packed_events_weigh_the_same_and_1_without_a_weight() -> None:
    samples, faults = JsonCodec(WEIGHED).decode([encode_json(event) for event in EVENTS])
    assert not faults
    assert samples.weights_B is not None
    assert samples.weights_B.tolist() == [2.5, 1, 1, 0]
    codec = PackedCodec(WEIGHED)
    assert codec.decode([codec.encode_events(EVENTS)])[0].equals(samples)


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (b"-1", "negative: weight 'worth' is -1, expected 0 to 1e+06"),
        (b"1e7", "oversized: weight 'worth' is 1e+07, expected 0 to 1e+06"),
        (b'"2"', "wrong type: Expected `int | float | null`, got `str` - at `$.fields.worth`"),
        (b"NaN", "not decodable: JSON is malformed: invalid character (byte 51)"),
    ],
)
def test_an_event_with_a_bad_weight_is_rejected_with_its_reason(weight: bytes, reason: str) -> None:
    event = b'{"event_time":1,"label":0,"fields":{"user":"a","worth":' + weight + b"}}"
    _, faults = JsonCodec(WEIGHED).decode([encode_json(EVENTS[0]), event])
    assert faults.keys() == {1}
    assert faults[1].partition(" (byte")[0] == reason.partition(" (byte")[0]


@pytest.mark.parametrize(("weight", "kind"), [(np.nan, "not finite"), (-2, "negative"), (2e6, "oversized")])
def test_a_packed_sample_with_a_bad_weight_is_rejected_alone(weight: float, kind: str) -> None:
    codec = PackedCodec(WEIGHED)
    samples, _ = Converter(WEIGHED).convert_events(EVENTS)
    assert samples.weights_B is not None
    samples.weights_B[2] = weight
    _, faults = codec.decode([codec.encode(samples)])
    assert faults.keys() == {2}
    assert faults[2].startswith(f"{kind}: weight 'worth' is ")


def test_a_schema_with_weights_is_another_one_and_a_key_cannot_be_a_weight() -> None:
    without = parse_schema(TEXT.replace('weight = "worth"\n', ""), "plain")
    assert without.fingerprint != WEIGHED.fingerprint
    with pytest.raises(ConfigError, match="field 'user' is a weight and has keys of a table"):
        parse_schema(TEXT.replace("worth", "user"), "wrong")


def test_a_check_of_events_knows_the_weight() -> None:
    survey = Survey(WEIGHED)
    survey.add([encode_json(event) for event in EVENTS])
    survey.add([PackedCodec(WEIGHED).encode_events(EVENTS)])
    found = {field.name: field for field in survey.findings().fields}
    assert (found["worth"].lowest, found["worth"].highest) == (0, 2.5)
    assert not survey.findings().unknown
