from pathlib import Path

import pytest

from infra.base.errors import ConfigError
from ingest.schema import BUILT_IN, load_schema, parse_schema, without_crosses


@pytest.mark.parametrize(
    ("name", "singles", "crosses", "dense"),
    [("criteo", 39, 7, 13), ("avazu", 22, 7, 0), ("movielens", 2, 0, 0), ("synthetic", 9, 0, 2)],
)
def test_built_in_schema_has_its_shape(name: str, singles: int, crosses: int, dense: int) -> None:
    schema = load_schema(name)
    fields = singles + crosses
    assert (schema.fields, schema.singles, schema.dense, len(schema.columns)) == (fields, singles, dense, fields)


def test_built_in_fingerprints_differ() -> None:
    assert len({load_schema(name).fingerprint for name in BUILT_IN}) == len(BUILT_IN)


def test_schema_from_a_file_equals_the_same_text(tmp_path: Path) -> None:
    text = 'name = "mine"\ntables = [{name = "user"}]\n'
    (tmp_path / "mine.toml").write_text(text)
    assert load_schema(str(tmp_path / "mine.toml")) == parse_schema(text, "mine")


def test_fingerprint_ignores_limits_but_not_order() -> None:
    first = parse_schema('name = "a"\ntables = [{name = "x"}, {name = "y"}]', "a")
    limits = parse_schema('name = "a"\ntables = [{name = "x"}, {name = "y"}]\nlimits = {string_bytes = 9}', "a")
    order = parse_schema('name = "a"\ntables = [{name = "y"}, {name = "x"}]', "a")
    assert first.fingerprint == limits.fingerprint != order.fingerprint


def test_crosses_are_part_of_the_model_but_not_of_packed_records() -> None:
    text = 'name = "a"\ntables = [{name = "x"}, {name = "y"}, {name = "z"}]\ncrosses = '
    none, pair, other = (parse_schema(text + crosses, "a") for crosses in ("[]", '[["x", "y"]]', '[["x", "z"]]'))
    assert len({none.fingerprint, pair.fingerprint, other.fingerprint}) == 3
    assert none.fingerprint == none.record_fingerprint == pair.record_fingerprint == other.record_fingerprint
    assert without_crosses(pair) == none
    assert (other.columns, other.cross_places) == (("x", "y", "z", "x×z"), ((0, 2),))


@pytest.mark.parametrize(
    ("crosses", "complaint"),
    [
        (
            '[["x", "nobody"]]',
            "cross 'x×nobody' names the table 'nobody', which there is not; expected names of .*: x, y",
        ),
        ('[["x"]]', "cross 'x' has 1 tables; expected two or three"),
        ('[["x", "y", "z", "v"]]', "cross 'x×y×z×v' has 4 tables; expected two or three"),
        ('[["x", "x"]]', "cross 'x×x' has a table twice; expected different tables"),
        ('[["x", "y"], ["y", "x"]]', "cross 'y×x' is there twice; expected each combination of tables once"),
        ('[["x", "tags"]]', "cross 'x×tags' has the table 'tags' of 2 values; expected tables of one value"),
        ('[["v", "w"]]', "a table is called 'v×w', as a cross is"),
        (str([["x", "y"]] * 101), "it has 101 crosses; expected at most 100"),
        ('["x", "y"]', "Expected `array`, got `str`"),
    ],
)
def test_a_cross_that_cannot_be_is_refused(crosses: str, complaint: str) -> None:
    names = ["x", "y", "z", "v", "w", "v×w"]
    tables = ", ".join([*(f'{{name = "{name}"}}' for name in names), '{name = "tags", values = 2}'])
    with pytest.raises(ConfigError, match=complaint):
        parse_schema(f'name = "a"\ntables = [{tables}]\ncrosses = {crosses}', "a")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name = ", "is not TOML"),
        ('name = "a"', "missing required field `tables`"),
        ('name = "a"\ntables = []', "it has no tables"),
        ('name = "a"\ntables = [{nam = "x"}]', "unknown field `nam`|missing required field `name`"),
        (
            'name = "a"\ntable = []',
            "expected name, tables, dense_fields, partition_by, limits, .*, crosses, file as in",
        ),
        ('name = "a"\ntables = [{name = "x", valeus = 3}]', "`valeus` .* expected name, source, values, .* in tables"),
        (
            'name = "a"\ntables = [{name = "x"}]\ndense_fields = [{name = "d", mni = 3}]',
            "`mni` .* expected name, source, transform, min, max, required, coerce in dense_fields",
        ),
        ('name = "a"\ntables = [{name = "x"}, {name = "x"}]', "there twice"),
        ('name = "a"\ntables = [{name = "x", values = 0}]', "values = 0"),
        ('name = "a"\ntables = [{name = "x", truncate = true}]', "truncate of lists"),
        ('name = "a"\ntables = [{name = "x", coerce = true}]', "coerce of numbers"),
        (
            'name = "a"\ntables = [{name = "x", bucket = "log_square"}]\ndense_fields = [{name = "x", coerce = true}]',
            "has coerce for one use and not for another",
        ),
        ('name = "a"\ntables = [{name = "x", bucket = "log"}]', "Invalid enum value 'log'"),
        ('name = "a"\ntables = [{name = "x"}]\ndense_fields = [{name = "d", min = 2, max = 1}]', "min 2.0 and max 1.0"),
        ('name = "a"\ntables = [{name = "x"}]\ndense_fields = [{name = "d", max = nan}]', "finite min <= max"),
        ('name = "a"\ntables = [{name = "x"}]\ndense_fields = [{name = "d", max = 1e39}]', "3.40282e\\+38 at most"),
        ('name = "a"\ntables = [{name = "x"}]\ndense_fields = [{name = "d", min = -1e39}]', "3.40282e\\+38 at most"),
        ('name = "a"\ntables = [{name = "x"}]\ndense_fields = [{name = "d", max = inf}]', "finite min <= max"),
        ("name = " + "[" * 5000, "nested too deeply"),
        ("name = " + "9" * 5000, "is not TOML"),
        ('name = "a"\ntables = [{name = "x", values = 2}]\ndense_fields = [{name = "x"}]', "one meaning a field"),
        ('name = "a"\ntables = [{name = "x", values = 2}, {name = "y", source = "x"}]', "one meaning a field"),
    ],
)
def test_wrong_schema_is_refused_with_its_fault(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_schema(text, "a")


def test_unknown_schema_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="avazu, criteo, movielens, synthetic"):
        load_schema("kriteo")
