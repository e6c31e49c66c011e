"""Times of decisions, by part."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.decide import run_decide, time_decisions
from benchmarks.growth import growing_keys, run_growth
from dispatch.placement.rows.two_fold import TwoFold
from infra.base.errors import ConfigError
from infra.cli.main import app
from ingest.schema import load_schema

SCHEMA = load_schema("avazu")


def test_every_combination_is_timed_and_its_parts_are_less_than_the_whole() -> None:
    found = list(run_decide(["esd:1", "laia"], [1, 2], [16, 32], SCHEMA, "avazu", steps=8, cache_rows=2000))
    combinations = [(result.policy, result.workers, result.batch) for result in found]
    assert combinations == [(p, n, b) for p in ("esd:1", "laia") for n in (1, 2) for b in (16, 32)]
    for result in found:
        assert 0 < result.distinct <= result.batch * SCHEMA.fields
        assert result.ahead > 0
        assert (result.assign > 0) is (result.workers > 1), "one worker has nothing to assign"
        assert result.look_up + result.plan > 0
        assert result.longest > 0


def test_what_replicas_cost_a_decision_is_part_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    monkeypatch.setattr(TwoFold, "count_step", lambda _self, batch, *_: counted.append(batch.rows_U.size))
    keys_KF = np.arange(64, dtype=np.uint64).reshape(16, 4)
    for policy in ("esd:1", "esd:1:hot"):
        time_decisions(policy, 2, 2, keys_KF, cache_rows=2000)
    assert counted == [8] * 8


def test_a_cache_that_is_too_small_is_named_with_its_option() -> None:
    keys_KF = np.arange(64, dtype=np.uint64).reshape(16, 4)
    with pytest.raises(ConfigError, match="--cache-rows"):
        time_decisions("laia", 2, 8, keys_KF, cache_rows=3)


def test_a_file_with_too_few_clicks_is_refused(tmp_path: Path) -> None:
    header = "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,"
    header += "device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
    line = "1,0,14102100,1005,0,a,b,c,d,e,f,g,h,i,1,2,15706,320,50,1722,0,35,-1,79"
    file = tmp_path / "few.csv.gz"
    file.write_bytes(gzip.compress(f"{header}\n{line}\n".encode()))
    with pytest.raises(ConfigError, match=r"has 1 samples; expected 128"):
        list(run_decide(["laia"], [1], [16], SCHEMA, "avazu", steps=8, cache_rows=2000, file=file))


@pytest.mark.parametrize("option", [("--workers", "0"), ("--batch", "many"), ("--threads", "-1")])
def test_bad_numbers_are_refused(option: tuple[str, str]) -> None:
    refused = CliRunner().invoke(app, ["bench", "decide", *option])
    assert isinstance(refused.exception, ConfigError)
    assert option[0] in str(refused.exception)


def test_the_command_writes_its_results(tmp_path: Path) -> None:
    arguments = ["--policies", "laia", "--workers", "2", "--batch", "16", "--steps", "8", "--cache-rows", "2000"]
    arguments += ["--threads", "1"]
    done = CliRunner().invoke(app, ["bench", "decide", *arguments, "--json", str(tmp_path / "decide.json")])
    assert done.exit_code == 0, done.output
    (result,) = json.loads((tmp_path / "decide.json").read_text())
    assert (result["policy"], result["threads"], result["workers"], result["batch"]) == ("laia", 1, 2, 16)


def test_growing_keys_are_all_seen_and_every_part_is_timed() -> None:
    (result,) = run_growth(["esd:1"], [2], [64], fields=6, keys=2000, cache_rows=2000)
    assert (result.policy, result.workers, result.batch, result.steps) == ("esd:1", 2, 64, 8)
    assert 2000 <= result.keys <= 2000 + 64 * 4
    assert 0 < result.look_up.median <= result.look_up.rare <= result.look_up.worst < result.decide.worst
    assert 0 < result.ahead.cpu_median <= result.ahead.cpu_rare <= result.ahead.cpu_worst


def test_every_batch_has_new_keys_beside_known_ones() -> None:
    seen: set[int] = set()
    for keys_BF in growing_keys(16, 6, 1000):
        assert not seen & set(keys_BF[:, :4].reshape(-1).tolist())
        seen |= set(keys_BF[:, :4].reshape(-1).tolist())
        assert set(keys_BF[:, 4:].reshape(-1).tolist()) <= seen
    assert len(seen) >= 1000


def test_the_command_reports_the_growth_of_keys(tmp_path: Path) -> None:
    arguments = ["--policies", "laia", "--workers", "2", "--batch", "64", "--cache-rows", "4000", "--threads", "1"]
    arguments += ["--keys", "2000", "--json", str(tmp_path / "growth.json")]
    done = CliRunner().invoke(app, ["bench", "decide", *arguments])
    assert done.exit_code == 0, done.output
    assert "look-up" in done.output
    (result,) = json.loads((tmp_path / "growth.json").read_text())
    assert result["decide"]["worst"] >= result["decide"]["median"] > 0


def test_growing_keys_are_not_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "clicks.csv").touch()
    arguments = ["--keys", "2000", "--input", str(tmp_path / "clicks.csv")]
    refused = CliRunner().invoke(app, ["bench", "decide", *arguments])
    assert isinstance(refused.exception, ConfigError)
    assert "omit --input" in str(refused.exception)
