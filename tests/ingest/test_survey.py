import msgspec
import pytest

from ingest.codec.json_events import encode_json
from ingest.codec.packed import PackedCodec
from ingest.codec.unknown import nearest_field
from ingest.convert import Event
from ingest.schema import load_schema
from ingest.survey import FieldFindings, Findings, Survey
from tests.ingest.topics import SMALL, SYNTHETIC, events


def survey(*payloads: bytes) -> Findings:
    looking = Survey(SMALL)
    looking.add(payloads)
    return looking.findings()


def field(found: Findings, name: str) -> FieldFindings:
    return next(each for each in (*found.fields, *found.unknown) if each.name == name)


def event(**fields: object) -> bytes:
    return msgspec.json.encode({"event_time": 1, "label": 1, "fields": fields})


WHOLE = event(user="u", tags=["a", "b"], age=3, score=-1.5)


def test_events_that_fit_have_no_faults() -> None:
    found = survey(WHOLE, event(user=7, tags="a", age=4.5, score=2))
    assert (found.good, found.rejected, found.faults, found.unknown) == (2, 0, (), ())
    assert field(found, "user") == FieldFindings(
        name="user",
        share=1.0,
        kinds={"text": 1, "integer": 1},
        lowest=7.0,
        highest=7.0,
        distinct=2,
        examples=('"u"', "7"),
    )
    assert (field(found, "tags").distinct, field(found, "tags").kinds) == (2, {"list": 1, "text": 1})
    assert (field(found, "score").lowest, field(found, "score").highest) == (-1.5, 2.0)


def test_a_misspelt_field_is_found_with_the_one_it_is_meant_for() -> None:
    found = survey(
        event(user="u", Tag=["a"], age=3, score=1, other={"a": 1}), event(user=None, tags=[], age=1, score=0)
    )
    assert found.absent == ("tags",)
    assert (field(found, "Tag").nearest, field(found, "other").nearest) == ("tags", None)
    assert field(found, "user").share == 0.5
    assert found.faults == ("no event has field tags; some have Tag",)


def test_dead_letters_are_counted_by_reason_and_their_fields_looked_at() -> None:
    found = survey(WHOLE, event(user="u", age=999), b"no event", b"", b"[" * 1000)
    assert found.reasons == {"not decodable": 2, "oversized": 1, "too deep": 1}
    assert found.faults[0] == "4 of 5 events would be dead letters: 2 not decodable, 1 oversized, 1 too deep"
    assert field(found, "age").highest == 999.0
    assert any("field 'age' is 999, expected 0 to 200" in reason for reason in found.rejects)


def test_packed_records_tell_the_same_shares() -> None:
    given = events(200)
    json_survey, packed_survey = Survey(SYNTHETIC), Survey(SYNTHETIC)
    json_survey.add([encode_json(each) for each in given])
    packed_survey.add([PackedCodec(SYNTHETIC).encode_events(given)])
    by_json, by_packed = json_survey.findings(), packed_survey.findings()
    assert by_packed.faults == ()
    assert [each.share for each in by_packed.fields] == [each.share for each in by_json.fields]
    keyed = ("user", "item", "category", "tags", "device")
    assert [field(by_packed, name).distinct for name in keyed] == [field(by_json, name).distinct for name in keyed]


def test_packed_records_of_another_schema_tell_nothing_of_fields() -> None:
    looking = Survey(load_schema("criteo"))
    looking.add([PackedCodec(SYNTHETIC).encode_events(events(4))])
    found = looking.findings()
    assert found.fields == ()
    assert found.faults == ("no event fits the schema", "1 of 1 events would be dead letters: 1 wrong schema")


def test_nothing_to_look_at_is_a_fault() -> None:
    assert survey().faults == ("there is no record to look at",)


@pytest.mark.parametrize("value", [10**40, -(10**400), 1e308, True, [1, "a"], [[1]], {"a": {}}, "é" * 300])
def test_any_value_can_be_told(value: object) -> None:
    payload = encode_json(Event(1.0, 1, {"user": value, "odd": value}))  # type: ignore[dict-item]
    found = survey(payload)
    assert field(found, "user").share == field(found, "odd").share == 1.0
    assert all(len(text) <= 40 for text in field(found, "odd").examples)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Findings) == found


def test_a_name_is_near_another_in_spite_of_case_and_not_near_everything() -> None:
    fields = ("banner_pos", "user", "I1")
    assert [nearest_field(name, fields) for name in ("Banner-Pos", "USER_", "zzz")] == ["banner_pos", "user", None]
