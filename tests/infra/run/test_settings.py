import json
from pathlib import Path

import pytest
from crc32c import crc32c
from structlog.testing import capture_logs

from infra.base.errors import ConfigError
from infra.base.telemetry import describe
from infra.run.demo import demo_settings
from infra.run.settings import CHECKSUM, STORED, load_settings, read_stored, secret_environment, store_settings
from ingest.kafka.config import login_of


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "freshet.toml"
    file.write_text("seed = 1\n[stream]\nbatch = 10\npartitions = 3\n[dispatch]\nlookahead = 0\n")
    monkeypatch.setenv("FRESHET_STREAM__BATCH", "20")
    monkeypatch.setenv("FRESHET_STREAM__PARTITIONS", "5")
    settings = load_settings(file, ["stream.batch=30"])
    assert (settings.stream.batch, settings.stream.partitions) == (30, 5)
    assert (settings.seed, settings.dispatch.lookahead) == (1, 0)


def test_lists_and_no_value_can_be_written_on_the_command_line() -> None:
    settings = load_settings(None, ["dispatch.links_gbit=5,5,0.5,0.5", "stream.retention_bytes=none", "model.mlp=8,4"])
    assert settings.dispatch.links_gbit == (5.0, 5.0, 0.5, 0.5)
    assert settings.stream.retention_bytes is None
    assert settings.model.mlp == (8, 4)


def test_sections_are_read_by_their_names_in_earlier_releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRESHET_CUTS__KEPT", "7")
    with capture_logs() as logs:
        settings = load_settings(overrides=["cuts.seconds=3", "checkpoints.deltas=2"])
    assert (settings.checkpoints.kept, settings.checkpoints.seconds, settings.checkpoints.deltas) == (7, 3.0, 2)
    assert [line["event"] for line in logs] == [
        "settings cuts.* are called checkpoints.* now; rename them where they are set"
    ]
    with pytest.raises(ConfigError, match=r"setting checkpoints\.second = '3' does not exist"):
        load_settings(overrides=["cuts.second=3"])


def test_none_is_a_name_where_it_is_one_of_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(None, ["kafka.compression=none"]).kafka.compression == "none"
    monkeypatch.setenv("FRESHET_KAFKA__COMPRESSION", "none")
    assert load_settings().kafka.compression == "none"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stream.batch=x", r"setting stream\.batch = 'x' is wrong: .*integer.*FRESHET_STREAM__BATCH"),
        ("stream.batch=0", r"setting stream\.batch = '0' is wrong: .*greater than or equal to 1"),
        ("stream.bach=3", r"setting stream\.bach = '3' does not exist; expected one of: .*batch, "),
        ("dispatch.policy=best", r"setting dispatch\.policy: .*'best'.*random, round_robin, laia.*esd"),
        ("dispatch.policy=esd:2", r"setting dispatch\.policy: .*esd:2"),
        ("dispatch.links_gbit=5,0,1,1", r"setting dispatch: .*above 0 Gbit/s"),
        ("dispatch.links_gbit=5", r"setting dispatch: .*for 4 workers"),
        ("dispatch.uplinks_gbit=5", r"setting dispatch: uplink speeds .*beside the links"),
        ("dispatch.uplinks_gbit=5,5,0,1", r"setting dispatch: .*above 0 Gbit/s per link"),
        ("model.name=gpt", r"setting model\.name: there is no model 'gpt'; expected one of wdl, "),
        ("nonsense", r"--set 'nonsense' is not a setting; expected section\.name=value"),
        ("run=../up", r"setting run = '\.\./up' is wrong"),
        ("stream.dead_letter_topic=clicks", r"setting stream: topic and dead_letter_topic are both 'clicks'"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_settings(None, [override])
    assert "\n" not in str(caught.value)


def test_a_file_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.toml"):
        load_settings(tmp_path / "no.toml")
    (tmp_path / "bad.toml").write_text("batch = = 1")
    with pytest.raises(ConfigError, match=r"bad\.toml is not TOML"):
        load_settings(tmp_path / "bad.toml")
    (tmp_path / "latin.toml").write_bytes(b'run = "caf\xe9"')
    with pytest.raises(ConfigError, match=r"latin\.toml is not TOML"):
        load_settings(tmp_path / "latin.toml")


@pytest.mark.parametrize("value", ["[" * 5000, "9" * 5000])
def test_a_file_without_end_is_named(tmp_path: Path, value: str) -> None:
    (tmp_path / "endless.toml").write_text(f"seed = {value}")
    with pytest.raises(ConfigError, match=r"endless\.toml is not TOML"):
        load_settings(tmp_path / "endless.toml")


def test_defaults_of_a_command_are_beaten_by_the_file_the_environment_and_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "freshet.toml").write_text("[stream]\nbatch = 10\n")
    monkeypatch.setenv("FRESHET_RUN", "mine")
    defaults = {"run": "up", "seed": 3, "stream": {"batch": 1, "partitions": 7}, "ps": {"shards": 5}}
    settings = load_settings(tmp_path / "freshet.toml", ["ps.shards=3"], defaults)
    assert (settings.run, settings.seed, settings.ps.shards) == ("mine", 3, 3)
    assert (settings.stream.batch, settings.stream.partitions) == (10, 7)


def test_a_demo_follows_what_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = demo_settings(None, [], {"folder": Path("runs/demo")}, keep_all=False)
    assert (plain.dispatch.links_gbit, plain.ps.shards) == ((5, 5, 0.5, 0.5), 2)
    assert (plain.stream.folder, plain.stream.retention_bytes) == (Path("runs/demo/log"), 2**29)
    monkeypatch.setenv("FRESHET_FOLDER", str(tmp_path))
    monkeypatch.setenv("FRESHET_PS__SHARDS", "1")
    chosen = ["dispatch.workers=3", "stream.retention_bytes=none"]
    settings = demo_settings(None, chosen, {"folder": Path("runs/demo")}, keep_all=False)
    assert (settings.stream.folder, settings.ps.shards) == (tmp_path / "log", 1)
    assert (settings.dispatch.links_gbit, settings.stream.retention_bytes) == ((5, 5, 0.5), None)


@pytest.mark.parametrize(
    "name", ["FRESHET_BATCH", "FRESHET_STREM__BATCH", "FRESHET_RUN__X", "FRESHET_STREAM", "FRESHET_DATABASE_URL"]
)
def test_a_variable_that_sets_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=f"environment variable {name} sets nothing; .*unset it"):
        load_settings()


def test_variables_that_mean_something_else_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FRESHET_TORCH", "FRESHET_DATA", "FRESHET_SUPERVISED"):
        monkeypatch.setenv(name, "1")
    assert load_settings().seed == 0


def test_a_run_s_processes_read_what_was_stored_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings(None, ["stream.batch=77"], folder=tmp_path)
    store_settings(settings)
    monkeypatch.setenv("FRESHET_STREAM__BATCH", "1")
    assert read_stored(tmp_path) == settings


def test_accumulators_start_in_units_of_the_summed_gradient() -> None:
    rows = load_settings(None, ["stream.batch=10", "rows.initial_accumulator=2"]).scaled_rows
    assert (rows.initial_accumulator, rows.wide_accumulator) == pytest.approx((0.02, 0.001))
    rows = load_settings(None, ["stream.batch=10", "rows.wide_accumulator=0"]).scaled_rows
    assert rows.wide_accumulator == rows.initial_accumulator


def test_the_rate_of_a_wide_weight_is_its_part_of_that_of_all_unless_it_is_set() -> None:
    assert load_settings(None, ["stream.schema_name=movielens"]).scaled_rows.wide_rate == pytest.approx(0.7)
    assert load_settings(None, ["rows.wide_rate=0.05"]).scaled_rows.wide_rate == 0.05


def test_a_run_of_an_earlier_release_goes_on_as_it_began(tmp_path: Path) -> None:
    stored = load_settings(None, [f"folder={tmp_path}", "rows.wide_rate=0.03"]).model_dump(mode="json")
    for section, name in (
        *(("stream", name) for name in ("first_batch", "batch_growth", "crosses")),
        *(("model", name) for name in ("scale_rate", "label_smoothing")),
    ):
        del stored[section][name]
    del stored["rows"]["wide_accumulator"]
    checksum = int(crc32c(json.dumps(stored, sort_keys=True).encode()))
    (tmp_path / STORED).write_text(json.dumps({CHECKSUM: checksum, **stored}))
    settings = read_stored(tmp_path)
    assert (settings.stream.first_batch, settings.stream.crosses, settings.model.scale_rate) == (0, False, 0)
    rows = settings.scaled_rows
    assert (rows.wide_rate, rows.wide_accumulator) == (0.03, rows.initial_accumulator)


def test_freshet_kafka_names_the_brokers_and_a_flag_beats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRESHET_KAFKA", "a:1,b:2")
    assert load_settings().kafka.servers == ("a:1", "b:2")
    assert load_settings(None, ["kafka.servers=c:3"]).kafka.servers == ("c:3",)
    monkeypatch.setenv("FRESHET_KAFKA__SERVERS", "d:4")
    assert load_settings().kafka.servers == ("d:4",)


@pytest.mark.parametrize(
    "url", ["postgresql://ann:hu/sh@db/freshet", "postgresql://db/freshet?user=ann&password=hu/sh"]
)
def test_the_password_of_a_database_is_stored_for_this_user_alone_and_never_shown(tmp_path: Path, url: str) -> None:
    (tmp_path / STORED).write_text("{}")
    (tmp_path / STORED).chmod(0o644)
    settings = load_settings(None, [f"api.database={url}", f"folder={tmp_path}"])
    assert store_settings(settings).stat().st_mode & 0o777 == 0o600
    assert read_stored(tmp_path).api.database == url
    assert "hu/sh" not in str(describe(settings.model_dump(mode="json")))
    with pytest.raises(ConfigError, match=r"api\.databse = ") as misspelt:
        load_settings(None, [f"api.databse={url}"])
    assert "hu/sh" not in str(misspelt.value)


def test_a_secret_is_neither_stored_nor_shown_and_reaches_the_run_s_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ["kafka.protocol=SASL_SSL", "kafka.username=alice", "kafka.password=hush", f"folder={tmp_path}"]
    settings = load_settings(None, chosen)
    assert "hush" not in store_settings(settings).read_text()
    assert "hush" not in str(describe(settings.model_dump()))
    for name, value in secret_environment(settings).items():
        monkeypatch.setenv(name, value)
    assert login_of(read_stored(tmp_path).kafka) == ("alice", "hush")


@pytest.mark.parametrize("override", ["kafka.pasword=hush", "kafka.pw=hush"])
def test_a_misspelt_secret_is_not_repeated(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, [override])
    assert "hush" not in str(caught.value)


def test_a_stored_setting_is_not_changed_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_settings(load_settings(None, [f"folder={tmp_path}", "stream.batch=30"]))
    monkeypatch.setenv("FRESHET_STREAM__BATCH", "31")
    monkeypatch.setenv("FRESHET_KAFKA", "a:1")
    assert read_stored(tmp_path).stream.batch == 30
    assert read_stored(tmp_path).kafka.servers == ("127.0.0.1:9092",)


def test_stored_settings_that_were_changed_are_refused(tmp_path: Path) -> None:
    path = store_settings(load_settings(None, [f"folder={tmp_path}", "stream.batch=512"]))
    path.write_text(path.read_text().replace('"batch": 512', '"batch": 513'))
    with pytest.raises(ConfigError, match=f"{path} has changed since the run was started"):
        read_stored(tmp_path)
