import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.batches.counting import count_present, count_present_reference
from ingest.codec.decoder import Decoder
from ingest.codec.json_events import JsonCodec, encode_json
from ingest.codec.packed import PackedCodec
from ingest.convert import Event, Value
from ingest.errors import EncodeError
from ingest.schema import load_schema, parse_schema
from ingest.streams.position import Position
from tests.ingest.topics import SMALL, json_records

STRICT = parse_schema(
    """
    name = "strict"
    tables = [
        {name = "user", required = true}, {name = "tags", values = 2, required = true},
        {name = "age_bucket", source = "age", bucket = "log_square"},
    ]
    dense_fields = [{name = "age"}, {name = "score", transform = "identity", min = -5, required = true}]
    """,
    "strict",
)
WHOLE: dict[str, Value] = {"user": "u1", "tags": ["a"], "score": 0.0}


@pytest.mark.parametrize(
    ("change", "lacking"), [({"user": None}, "user"), ({"tags": []}, "tags"), ({"score": None}, "score"), ({}, "")]
)
def test_an_event_without_a_required_field_is_rejected_with_its_name(change: dict[str, Value], lacking: str) -> None:
    event = Event(1.0, 1, {**WHOLE, **change})
    expected = [f"missing: field {lacking!r}, which the schema requires"] if lacking else []
    decoded = Decoder(STRICT).decode(json_records([encode_json(event)]), Position(0))
    assert [reject.reason for reject in decoded.rejects] == expected
    assert len(decoded) == 1 - len(expected)


def test_a_packed_sample_without_a_required_field_is_rejected_alone() -> None:
    lenient = msgspec.structs.replace(
        STRICT,
        tables=tuple(msgspec.structs.replace(table, required=False) for table in STRICT.tables),
        dense_fields=tuple(msgspec.structs.replace(dense, required=False) for dense in STRICT.dense_fields),
    )
    events = [Event(1.0, 1, WHOLE), Event(1.0, 0, {"user": "u2", "tags": "b"}), Event(1.0, 0, {"tags": "b"})]
    payload = PackedCodec(lenient).encode_events(events)
    decoded = Decoder(STRICT).decode(json_records([payload]), Position(0))
    assert [(reject.position.index, reject.reason[:21]) for reject in decoded.rejects] == [
        (1, "missing: field 'score"),
        (2, "missing: field 'user'"),
    ]
    with pytest.raises(EncodeError, match="event 1 of 3: missing: field 'score'"):
        PackedCodec(STRICT).encode_events(events)


values = st.fixed_dictionaries(
    {},
    optional={
        "user": st.sampled_from(["", "u", None]),
        "tags": st.sampled_from([[], ["a"], "b", None]),
        "age": st.sampled_from([0, -0.0, 3, None]),
        "score": st.sampled_from([0, -0.0, 1e-50, -1e-50, 2.5, None]),
    },
)


@given(st.lists(values, min_size=1, max_size=8))
def test_values_are_counted_alike_in_json_and_packed_records(given_fields: list[dict[str, Value]]) -> None:
    events = [Event(1.0, 1, fields) for fields in given_fields]
    samples, faults = JsonCodec(SMALL).decode([encode_json(event) for event in events])
    assert not faults
    expected = [sum(fields.get(name) not in (None, []) for fields in given_fields) for name in SMALL.sources]
    codec = PackedCodec(SMALL)
    for counted in (samples, codec.decode([codec.encode_events(events)])[0]):
        assert count_present(counted, SMALL).tolist() == expected
        assert count_present_reference(counted, SMALL).tolist() == expected


def test_an_absent_number_trains_like_zero() -> None:
    samples, _ = JsonCodec(SMALL).decode([b'{"event_time":1,"label":0,"fields":{}}'])
    assert (samples.dense_BN == 0).all()
    assert np.signbit(samples.dense_BN).all()


def test_a_schema_names_each_field_once() -> None:
    criteo = load_schema("criteo")
    assert len(criteo.sources) == 39
    assert criteo.required == ()
    assert STRICT.required == ("user", "tags", "score")
    assert (
        STRICT.fingerprint
        == parse_schema(
            'name = "s"\ntables = [{name = "user"}, {name = "tags", values = 2}, {name = "age_bucket", source = "age", '
            'bucket = "log_square"}]\ndense_fields = [{name = "age"}, {name = "score", transform = "identity"}]',
            "s",
        ).fingerprint
    )


def test_a_schema_without_numbers_is_counted_too() -> None:
    movielens, events = load_schema("movielens"), [Event(1.0, 1, {"user": 1, "item": 2}), Event(1.0, 1, {"user": 3})]
    payload = PackedCodec(movielens).encode_events(events)
    for payloads in ([encode_json(event) for event in events], [payload]):
        decoded = Decoder(movielens).decode(json_records(payloads), Position(0))
        assert count_present(decoded.samples, movielens).tolist() == [2, 1]
