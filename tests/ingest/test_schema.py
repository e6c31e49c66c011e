from pathlib import Path

import pytest

from infra.base.errors import ConfigError
from ingest.schema import BUILT_IN, load_schema, parse_schema


@pytest.mark.parametrize(
    ("name", "fields", "dense"), [("criteo", 39, 13), ("avazu", 22, 0), ("movielens", 2, 0), ("synthetic", 9, 2)]
)
def test_built_in_schema_has_its_shape(name: str, fields: int, dense: int) -> None:
    schema = load_schema(name)
    assert (schema.fields, schema.dense, len(schema.columns)) == (fields, dense, fields)


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


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name = ", "is not TOML"),
        ('name = "a"', "missing required field `tables`"),
        ('name = "a"\ntables = []', "it has no tables"),
        ('name = "a"\ntables = [{nam = "x"}]', "unknown field `nam`|missing required field `name`"),
        ('name = "a"\ntable = []', "expected name, tables, dense_fields, partition_by, limits as in"),
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
