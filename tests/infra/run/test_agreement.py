"""Every setting is either one that all processes must share or one that may differ."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest

from infra.base.telemetry import code_version
from infra.base.wire import I64, Header
from infra.run.agreement import (
    MAY_DIFFER,
    MESSAGES,
    SHARDS_AND_WORKERS,
    VERSION,
    WORKERS,
    agreement_of,
    messages_digest,
)
from infra.run.reference import sections
from infra.run.settings import Settings, load_settings

OTHERS = [name for names in MAY_DIFFER.values() for name in names]
CHANGED = {
    "seed": "1",
    "stream.batch": "513",
    "stream.crosses": "false",
    "stream.schema_name": "criteo",
    "rows.dim": "17",
    "rows.wide": "false",
    "rows.float_dtype": "float64",
    "rows.optimizer": "sgd",
    "rows.rate": "0.5",
    "rows.wide_rate": "0.3",
    "rows.initial_accumulator": "0.1",
    "rows.wide_accumulator": "0.2",
    "rows.init_std": "0.1",
    "rows.eps": "0.1",
    "rows.chunks": "2",
    "rows.utility": "frequency",
    "rows.half_life_steps": "9",
    "ps.shards": "3",
    "model.name": "wdl",
    "model.mlp": "128,65",
    "model.cross_layers": "3",
    "model.cross": "vector",
    "model.cross_rank": "5",
    "model.dense_optimizer": "sgd",
    "model.dense_rate": "0.03",
    "model.scale_rate": "0.01",
    "model.base_rate": "0.5",
    "model.label_smoothing": "0.1",
    "trainer.reduce": "gloo",
    "trainer.unencrypted_reduce": "true",
}
"""another value of each setting that must agree"""
NAMES = "movielens", "criteo"


def test_somebody_has_decided_about_every_setting() -> None:
    whole = {name.removesuffix(".*") for name in OTHERS if name.endswith(".*")}
    there = [
        f"{section}.{field}".lstrip(".") for section, fields in sections() if section not in whole for field in fields
    ]
    decided = [name for name in (*SHARDS_AND_WORKERS, *WORKERS, *OTHERS) if not name.endswith(".*")]
    assert sorted(there) == sorted(decided)


def test_a_rate_that_follows_from_the_schema_is_compared_as_a_number() -> None:
    """shards compare no schema, and would not notice that they change rows at another rate"""
    usual, other = (agreement_of(load_settings(overrides=[f"stream.schema_name={name}"])) for name in NAMES)
    assert [each.shards["rows.wide_rate"] for each in (usual, other)] == ["0.7", str(1.4 / 46)]


def test_a_setting_that_earlier_releases_did_not_have_does_not_keep_their_runs_from_going_on() -> None:
    without = agreement_of(load_settings(overrides=["model.scale_rate=0"]))
    assert "model.scale_rate" not in without.frozen
    assert agreement_of(Settings()).frozen["model.scale_rate"] == "0.06"


def test_settings_of_0_1_0_that_pruning_added_stand_for_no_pruning() -> None:
    agreement = agreement_of(Settings())
    assert agreement.earlier["rows.chunks"] == "0"
    assert not {"rows.chunks", "rows.utility", "rows.half_life_steps"} & agreement.frozen.keys()


def test_a_section_that_may_differ_as_a_whole_is_a_section() -> None:
    whole = {name.removesuffix(".*") for name in OTHERS if name.endswith(".*")}
    assert whole == {"kafka", "api", "serving", "ray", "telemetry"}
    assert whole <= {section for section, _ in sections()}


@pytest.mark.parametrize("name", [*SHARDS_AND_WORKERS, *WORKERS])
def test_another_value_is_seen_by_those_who_use_it(name: str) -> None:
    other = ["rows.wide_rate=0.03", f"{name}={CHANGED[name]}"]
    usual, changed = agreement_of(load_settings(overrides=other[:1])), agreement_of(load_settings(overrides=other))
    assert {key for key in usual.workers if usual.workers[key] != changed.workers[key]} == {name}
    assert (usual.shards != changed.shards) == (name in SHARDS_AND_WORKERS)


def test_version_and_messages_must_agree() -> None:
    agreement = agreement_of(Settings())
    assert all(agreement.workers[name] == agreement.shards[name] != "" for name in (VERSION, MESSAGES))


def test_a_checkout_that_is_not_installed_agrees_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("infra.base.telemetry.version", missing)
    code_version.cache_clear()
    try:
        assert agreement_of(Settings()).workers[VERSION] == "unknown"
    finally:
        code_version.cache_clear()


def test_a_message_with_another_field_or_array_has_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    class Leave(Header, frozen=True):
        worker: int
        why: str

    digests = {messages_digest()}
    for messages in ((Leave,), (replace_arrays(),)):
        monkeypatch.setattr("infra.run.agreement.TO_DISPATCHER", messages)
        digests.add(messages_digest())
    assert len(digests) == 3


def replace_arrays() -> type[Header]:
    class OtherArrays(NamedTuple):
        numbers: I64

    class Leave(Header, frozen=True):
        ARRAYS: ClassVar = OtherArrays
        worker: int
        why: str

    return Leave


def test_a_schema_is_compared_by_content_not_by_path(tmp_path: Path) -> None:
    copied = tmp_path / "mine.toml"
    copied.write_text((Path(__file__).parents[3] / "ingest" / "schemas" / "synthetic.toml").read_text())
    assert agreement_of(load_settings(overrides=[f"stream.schema_name={copied}"])) == agreement_of(Settings())
