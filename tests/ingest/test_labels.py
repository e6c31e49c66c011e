"""Several labels of an event: the same however it came, not known where it says nothing."""

import numpy as np
import pytest

from infra.base.errors import ConfigError
from ingest.codec.decoder import Decoder
from ingest.codec.json_events import JsonCodec, encode_json
from ingest.codec.packed import PackedCodec
from ingest.convert import Event
from ingest.schema import parse_schema
from ingest.streams.position import Position
from ingest.streams.source import Record

TEXT = 'name = "both"\nlabels = ["click", "purchase"]\ntables = [{name = "user"}]'
BOTH = parse_schema(TEXT, "both")
EVENTS = [
    Event(1.0, 1, {"user": "a"}, {"purchase": 1}),
    Event(2.0, 0, {"user": "b"}, {"purchase": 0}),
    Event(3.0, 1, {"user": "c"}),
    Event(4.0, 0, {"user": "d"}, {"purchase": None}),
]


def test_json_and_packed_events_have_the_same_labels_and_none_where_nothing_is_said() -> None:
    samples, faults = JsonCodec(BOTH).decode([encode_json(event) for event in EVENTS])
    assert not faults
    assert samples.labels_B.tolist() == [1, 0, 1, 0]
    np.testing.assert_array_equal(samples.more_labels_BL, np.array([[1], [0], [np.nan], [np.nan]], np.float32))
    codec = PackedCodec(BOTH)
    assert codec.decode([codec.encode_events(EVENTS)])[0].equals(samples)


@pytest.mark.parametrize(
    ("given", "label"),
    [(b'"labels":{"click":1,"purchase":0}', 1), (b'"label":0,"labels":{"click":1}', 0), (b'"label":1', 1)],
)
def test_the_main_label_may_be_among_the_others(given: bytes, label: int) -> None:
    samples, faults = JsonCodec(BOTH).decode([b'{"event_time":1,"fields":{"user":"a"},' + given + b"}"])
    assert not faults
    assert samples.labels_B.tolist() == [label]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (b'"labels":{"purchase":1}', "missing: label 'click'"),
        (b'"label":1,"labels":{"purchase":2}', "label: 'purchase' is 2, expected 0 or 1"),
        (
            b'"label":1,"labels":{"purchase":"1"}',
            "wrong type: Expected `int | null`, got `str` - at `$.labels.purchase`",
        ),
    ],
)
def test_an_event_with_a_wrong_label_is_rejected(given: bytes, reason: str) -> None:
    event = b'{"event_time":1,"fields":{"user":"a"},' + given + b"}"
    assert JsonCodec(BOTH).decode([event])[1] == {0: reason}
    assert JsonCodec(BOTH, needs_label=False).decode([b'{"fields":{"user":"a"}}'])[1] == {}


def test_a_packed_sample_with_a_wrong_label_is_rejected() -> None:
    codec = PackedCodec(BOTH)
    samples, _ = JsonCodec(BOTH).decode([encode_json(event) for event in EVENTS])
    assert samples.more_labels_BL is not None
    samples.more_labels_BL[1, 0] = 0.5
    assert codec.decode([codec.encode(samples)])[1] == {1: "label: 'purchase' is 0.5, expected 0 or 1"}


def test_a_sample_with_any_label_is_not_a_negative() -> None:
    schema = parse_schema(f"keep_negatives = 0.5\n{TEXT}", "sampled")
    bought = encode_json(Event(1.0, 0, {"user": "a"}, {"purchase": 1}))
    decoded = Decoder(schema).decode([Record(offset, None, bought, 0) for offset in range(50)], Position(0))
    assert len(decoded) == 50
    assert decoded.samples.weights_B is not None
    assert set(decoded.samples.weights_B) == {1}


@pytest.mark.parametrize("labels", ['["click", "click"]', '["click", ""]'])
def test_labels_with_one_name_or_none_are_refused(labels: str) -> None:
    with pytest.raises(ConfigError, match="expected at most 16 different names"):
        parse_schema(TEXT.replace('["click", "purchase"]', labels), "wrong")
