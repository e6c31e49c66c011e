import math
import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.codec.decoder import KEPT_BYTES, KINDS, Decoder, Reject
from ingest.codec.json_events import JsonCodec, encode_json
from ingest.codec.packed import HEADER, PackedCodec
from ingest.columns import MAX_TIME, transform
from ingest.convert import Converter, Event
from ingest.errors import EncodeError
from ingest.keys import absent_key, key_of
from ingest.producing.poison import PACKED_RECORD_POISON, PACKED_SAMPLE_POISON, POISON, poison_packed
from ingest.schema import BUILT_IN, DenseField, KeyTable, Schema, load_schema, parse_schema
from ingest.streams.position import Position
from ingest.streams.source import Record
from tests.ingest.topics import SMALL, SYNTHETIC, events, json_records

GOOD = {"event_time": 1731600000.25, "label": 1, "fields": {"user": "u17", "tags": ["a"], "age": 30, "score": 1.5}}


def reason(payload: bytes) -> str:
    """Why a JSON record is rejected, or '' if it is not."""
    return JsonCodec(SMALL).decode([payload])[1].get(0, "")


def with_fields(**fields: object) -> bytes:
    return msgspec.json.encode({**GOOD, "fields": {**GOOD["fields"], **fields}})  # type: ignore[dict-item]


def test_json_event_becomes_keys_and_floats() -> None:
    samples, faults = JsonCodec(SMALL).decode([msgspec.json.encode(GOOD)])
    absent = absent_key("tags")
    assert not faults
    assert samples.keys_BF.tolist() == [
        [key_of("user", "u17"), key_of("tags", "a"), absent, absent, key_of("age_bucket", 11)]
    ]
    assert samples.dense_BN.tolist() == [[float(np.float32(math.log1p(30))), 1.5]]
    assert (samples.labels_B.tolist(), samples.times_B.tolist()) == ([1.0], [1731600000.25])


def test_absent_fields_become_absent_keys_and_zeros() -> None:
    samples, faults = JsonCodec(SMALL).decode(
        [b'{"event_time":1,"label":0,"fields":{"user":null,"unknown":{"a":[1]}}}']
    )
    tags = absent_key("tags")
    assert not faults
    assert samples.keys_BF.tolist() == [[absent_key("user"), tags, tags, tags, absent_key("age_bucket")]]
    assert samples.dense_BN.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"\xff" * 40, "not decodable: 'utf-8' codec can't decode byte 0xff"),
        (b"", "not decodable: the record is empty"),
        (b'{"x":' + b"[" * 2000, "too deep: more than 64 objects and lists"),
        (b"[1]", "wrong type: Expected `object`, got `array`"),
        (b'{"event_time":1,"label":1}', "missing: Object missing required field `fields`"),
        (b'{"event_time":1,"fields":{}}', "missing: Object missing required field `label`"),
        (b'{"event_time":1,"label":null,"fields":{}}', "wrong type: Expected `int`, got `null` - at `$.label`"),
        (b'{"event_time":1,"label":2,"fields":{}}', "label: 2, expected 0 or 1"),
        (b'{"event_time":1,"label":' + b"9" * 60 + b',"fields":{}}', "label: a very large integer"),
        (b'{"event_time":-1,"label":1,"fields":{}}', "negative: event_time is -1.0"),
        (b'{"event_time":1e300,"label":1,"fields":{}}', "oversized: event_time is 1e+300"),
        (b'{"event_time":NaN,"label":1,"fields":{}}', "not decodable"),
        (b'{"event_time":1,"label":1,"fields":{"user":"\xff"}}', "not decodable"),
        (b'{"event_time":1,"label":1,"fields":{"user":"\\ud800x"}}', "lone surrogate: \\ud800 at byte 44"),
        (b'{"event_time":1,"label":1,"fields":{"user":"\\uDC00"}}', "lone surrogate: \\uDC00 at byte 44"),
        (b'{"event_time":1,"label":1,"fields":{"x":"\\ud83d\\ude00\\ud83d"}}', "lone surrogate: \\ud83d at byte 53"),
        (b'{"event_time":1,"label":1,"fields":{"user":"\\\\ud800\\q"}}', "not decodable: JSON is malformed"),
        (b'{"event_time":1,"label":1,"fields":{"user":1e999}}', "oversized: Number out of range"),
        (b'{"event_time":1,"label":1,"fields":{"age":Infinity}}', "not decodable"),
        (with_fields(user=["a"]), "wrong type: Expected `bool | int | float | str | null`, got `array`"),
        (with_fields(tags=[None]), "wrong type: Expected `bool | int | float | str`, got `null`"),
        (with_fields(tags=["a", "b", "c", "d"]), "too many values: field 'tags' has 4, at most 3"),
        (with_fields(tags=["a", "x" * 33]), "oversized: field 'tags' has 33 bytes, at most 32"),
        (with_fields(user="é" * 17), "oversized: field 'user' has 34 bytes, at most 32"),
        (with_fields(age=-1), "negative: field 'age' is -1, expected 0 to 200"),
        (with_fields(age=201), "oversized: field 'age' is 201, expected 0 to 200"),
        (with_fields(age="30"), "wrong type: Expected `int | float | null`, got `str` - at `$.fields.age`"),
        (with_fields(age=True), "wrong type: Expected `int | float | null`, got `bool`"),
        (with_fields(score=-6), "negative: field 'score' is -6, expected -5 to 5"),
        (with_fields(note="x" * 5000), "oversized: record of"),
    ],
)
def test_bad_json_is_rejected_with_its_reason(payload: bytes, expected: str) -> None:
    assert expected in reason(payload)


def test_integers_too_large_for_any_float_are_rejected() -> None:
    assert "oversized" in reason(b'{"event_time":1,"label":1,"fields":{"age":' + b"9" * 400 + b"}}")
    assert "oversized" in reason(b'{"event_time":1,"label":1,"fields":{"user":' + b"9" * 33 + b"}}")


def test_values_at_a_limit_are_kept_and_those_just_beyond_rejected() -> None:
    assert reason(with_fields(age=200, score=5)) == reason(with_fields(score=-5)) == ""
    padded = msgspec.json.encode(GOOD).ljust(SMALL.limits.record_bytes)
    assert (reason(padded), reason(padded + b" ")) == ("", "oversized: record of 4097 bytes, at most 4096")
    assert "oversized" in reason(msgspec.json.encode({**GOOD, "event_time": MAX_TIME}))


def test_bucketed_number_of_exactly_2_to_the_63_is_rejected() -> None:
    schema = parse_schema('name = "b"\ntables = [{name = "n", bucket = "log_square"}]', "b")
    _, faults = Converter(schema).convert_events([Event(1.0, 1, {"n": 2.0**exponent}) for exponent in (62, 63)])
    assert list(faults) == [1]


def test_equal_values_of_other_types_keep_their_own_keys_in_one_batch() -> None:
    payloads = [with_fields(user=value) for value in (1, 1.5, 1.0, True, "1")]
    codec = JsonCodec(SMALL)
    alone = [int(codec.decode([payload])[0].keys_BF[0, 0]) for payload in payloads]
    assert codec.decode(payloads)[0].keys_BF[:, 0].tolist() == alone
    assert len(set(alone)) > 2


def test_wrong_type_is_the_reason_told_before_others() -> None:
    _, faults = Converter(SMALL).convert_events([Event(-1.0, 1, {"user": {}})])
    assert faults[0].startswith("wrong type: field 'user'")


def test_rejected_payload_is_kept_up_to_a_size() -> None:
    decoded = Decoder(SMALL).decode([Record(0, None, b"x" * (KEPT_BYTES + 1), 0)], Position(0))
    assert decoded.rejects[0].payload == b"x" * KEPT_BYTES


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**31])
def test_integer_ids_of_any_size_keep_their_digits(number: int) -> None:
    payload = b'{"event_time":1,"label":1,"fields":{"user":%d}}' % number
    assert int(JsonCodec(SMALL).decode([payload])[0].keys_BF[0, 0]) == key_of("user", str(number))


@given(st.binary(max_size=300) | st.text(alphabet='{}[]",:0123456789eE.-truefalsnl \\u', max_size=200).map(str.encode))
def test_any_bytes_are_a_sample_or_a_reject(payload: bytes) -> None:
    decoded = Decoder(SMALL).decode([Record(5, None, payload, 0)], Position(5))
    assert len(decoded) + len(decoded.rejects) == 1
    assert decoded.end == Position(6)


raw = (
    st.text(max_size=5)
    | st.integers(-(10**20), 10**20)
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
)
fields = st.fixed_dictionaries(
    {},
    optional={
        "user": raw | st.none() | st.lists(raw, max_size=1),
        "tags": raw | st.lists(raw, max_size=4) | st.none(),
        "age": st.integers(-5, 300) | st.floats(-1, 201) | st.none(),
        "score": st.floats(-6, 6) | st.none(),
    },
)
some_events = st.lists(
    st.builds(Event, st.floats(-1, 2e9), st.integers(-1, 2), fields),
    min_size=1,
    max_size=12,
)


@given(some_events)
def test_events_decode_alone_as_they_do_together(given_events: list[Event]) -> None:
    codec = JsonCodec(SMALL)
    payloads = [encode_json(event) for event in given_events]
    samples, faults = codec.decode(payloads)
    for row, payload in enumerate(payloads):
        alone, fault = codec.decode([payload])
        assert fault.get(0) == faults.get(row)
        assert fault or alone.equals(samples.slice(row, row + 1))


@given(some_events)
def test_packed_good_events_equal_the_same_events_as_json(given_events: list[Event]) -> None:
    samples, faults = JsonCodec(SMALL).decode([encode_json(event) for event in given_events])
    good = [event for row, event in enumerate(given_events) if row not in faults]
    codec = PackedCodec(SMALL)
    if good:
        decoded, packed_faults = codec.decode([codec.encode_events(good)])
        keep = np.array([row not in faults for row in range(len(given_events))])
        assert not packed_faults
        assert decoded.equals(samples.where(keep))


def test_packing_an_event_that_does_not_fit_is_refused() -> None:
    with pytest.raises(EncodeError, match="event 1 of 2: negative: field 'age' is -1"):
        PackedCodec(SMALL).encode_events([Event(1.0, 1, {}), Event(1.0, 1, {"age": -1})])


def test_packing_more_than_fits_is_refused() -> None:
    codec = PackedCodec(SMALL)
    with pytest.raises(EncodeError, match=f"expected 1 to {codec.most}"):
        codec.encode_events([Event(1.0, 1, {})] * (codec.most + 1))


def packed_record(count: int, kind: str | None = None, row: int = 1) -> bytes:
    codec = PackedCodec(SYNTHETIC)
    samples, _ = codec.decode([codec.encode_events(events(count))])
    return codec.encode(samples) if kind is None else poison_packed(codec, samples, row, kind)


@pytest.mark.parametrize("kind", PACKED_SAMPLE_POISON)
def test_bad_packed_sample_is_rejected_alone(kind: str) -> None:
    decoded = Decoder(SYNTHETIC).decode([Record(9, None, packed_record(4, kind), 0)], Position(9))
    assert [r.position for r in decoded.rejects] == [Position(9, 1)]
    assert decoded.at_B.tolist() == [[9, 0], [9, 2], [9, 3]]
    assert decoded.after_B.tolist() == [[9, 1], [9, 3], [10, 0]]


@pytest.mark.parametrize("kind", PACKED_RECORD_POISON)
def test_bad_packed_header_rejects_the_record_as_one_event(kind: str) -> None:
    records = json_records([packed_record(2), packed_record(4, kind), packed_record(2)])
    decoded = Decoder(SYNTHETIC).decode(records, Position(0))
    assert [r.position for r in decoded.rejects] == [Position(1, 0)]
    assert len(decoded) == 4


def test_empty_packed_record_is_rejected() -> None:
    header = HEADER.pack(b"FSHT", 1, 0, int(SYNTHETIC.fingerprint, 16), 0, SYNTHETIC.fields, SYNTHETIC.dense)
    assert PackedCodec(SYNTHETIC).count(header) == f"not decodable: 0 packed samples in {HEADER.size} bytes"


def test_packed_header_of_another_schema_is_rejected() -> None:
    assert "wrong schema" in str(PackedCodec(SMALL).count(packed_record(2)))


def test_packed_infinity_and_oversized_floats_are_rejected() -> None:
    codec = PackedCodec(SMALL)
    samples, _ = codec.decode([codec.encode_events([Event(1.0, 1, {})] * 3)])
    samples = samples.where(np.ones(3, np.bool_))
    samples.dense_BN[0, 1], samples.dense_BN[1, 1] = np.inf, 5.1
    assert sorted(codec.decode([codec.encode(samples)])[1]) == [0, 1]


WIDE = Schema("wide", (KeyTable("user"),), (DenseField("huge", transform="identity", max=1e300),))
"""no file can hold it, because its limit is beyond float32"""


def test_a_number_beyond_float32_is_rejected_whatever_the_schema_says() -> None:
    _, faults = Converter(WIDE).convert_events([Event(1.0, 1, {"huge": number}) for number in (3.4e38, 1e39, 1e299)])
    assert faults == {
        row: f"not finite: field 'huge' is 1e+{n}, too large for a float32" for row, n in ((1, 39), (2, 299))
    }
    codec = PackedCodec(WIDE)
    samples, _ = codec.decode([codec.encode_events([Event(1.0, 1, {"huge": 3.4e38})] * 2)])
    samples = samples.where(np.ones(2, np.bool_))
    samples.dense_BN[1, 0] = np.inf
    assert list(codec.decode([codec.encode(samples)])[1]) == [1]


def test_packed_time_of_the_year_10000_is_rejected() -> None:
    codec = PackedCodec(SMALL)
    samples, _ = codec.decode([codec.encode_events([Event(1.0, 1, {})] * 2)])
    samples = samples.where(np.ones(2, np.bool_))
    samples.times_B[1] = MAX_TIME
    assert list(codec.decode([codec.encode(samples)])[1]) == [1]


@given(st.binary(max_size=200))
def test_any_bytes_after_the_magic_are_samples_or_rejects(tail: bytes) -> None:
    decoded = Decoder(SMALL).decode([Record(0, None, b"FSHT" + tail, 0)], Position(0))
    assert len(decoded) + len(decoded.rejects) >= 1


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("kind", list(POISON))
def test_every_kind_of_json_poison_is_one_reject_in_every_schema(kind: str, name: str) -> None:
    schema = load_schema(name)
    payload = POISON[kind](Event(1.0, 1, {"user": "u", "C1": "a"}), schema)
    decoded = Decoder(schema).decode([Record(0, None, payload, 0)], Position(0))
    assert (len(decoded), len(decoded.rejects)) == (0, 1)


def test_every_reason_is_documented() -> None:
    table = (Path(__file__).parents[3] / "docs" / "schemas.md").read_text()
    assert [kind for kind in KINDS if f"`{kind}`" not in table] == []


def test_mixed_json_and_packed_records_keep_their_order() -> None:
    first, second = (encode_json(event) for event in events(2))
    decoded = Decoder(SYNTHETIC).decode(json_records([first, packed_record(3), b"bad", second]), Position(0))
    assert decoded.at_B.tolist() == [[0, 0], [1, 0], [1, 1], [1, 2], [3, 0]]
    assert decoded.rejects == (Reject(Position(2), decoded.rejects[0].reason, b"bad", 3),)


def test_decoding_from_the_middle_of_a_packed_record_skips_what_was_taken() -> None:
    decoded = Decoder(SYNTHETIC).decode([Record(3, None, packed_record(4), 0)], Position(3, 2))
    assert decoded.at_B.tolist() == [[3, 2], [3, 3]]


def test_decoding_from_a_bad_sample_of_a_packed_record_rejects_it() -> None:
    codec = PackedCodec(SYNTHETIC)
    samples, _ = codec.decode([packed_record(4)])
    payload = poison_packed(codec, samples, 2, "nan_label")
    decoded = Decoder(SYNTHETIC).decode([Record(3, None, payload, 0)], Position(3, 2))
    assert decoded.at_B.tolist() == [[3, 3]]
    assert [reject.position for reject in decoded.rejects] == [Position(3, 2)]


def test_packed_layout_is_little_endian_and_without_padding() -> None:
    codec = PackedCodec(SMALL)
    payload = codec.encode_events([Event(2.5, 1, {"score": -1.5})])
    assert len(payload) == HEADER.size + 8 + 8 * 5 + 4 * 2 + 4
    assert struct.unpack_from("<d", payload, HEADER.size) == (2.5,)
    assert struct.unpack_from("<ff", payload, len(payload) - 8) == (-1.5, 1.0)


@pytest.mark.parametrize(("value", "expected"), [(-9.0, -math.log(10)), (0.0, 0.0), (9.0, math.log(10))])
def test_signed_logarithms_keep_the_sign_of_a_number(value: float, expected: float) -> None:
    field = DenseField("change", transform="signed_log1p", min=-10.0)
    assert transform(field, np.array([value])).tolist() == pytest.approx([expected])
