import re
from pathlib import Path

import pytest

from dispatch.placement.errors import CacheTooSmall, NoGpu
from infra.base.config import PRIVATE
from infra.base.errors import ConfigError
from infra.cli.commands import keys
from infra.run.checks import check_ports, check_start
from infra.run.settings import load_settings
from tests.end_to_end.processes import run
from trainer.errors import DeviceMissing


def test_one_metrics_port_for_many_processes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"telemetry\.metrics_port = 9100 .*endpoints/NAME\.metrics; unset it"):
        check_ports(load_settings(None, ["telemetry.metrics_port=9100"]))


WRONG = {
    "stream.schema_name=no.toml": "cannot read schema 'no.toml'",
    "dispatch.endpoint=tcp://0.0.0.0:5500": "can be reached from other machines",
    "ps.endpoints=tcp://127.0.0.1:5600": "for ps.shards = 2; expected one per shard",
    "telemetry.metrics_host=256.0.0.1": "telemetry.metrics_host = '256.0.0.1' cannot be listened on",
    "api.host=no such host": "api.host = 'no such host' cannot be listened on",
    "dispatch.least_share=0": "no worker can be parked; dispatch.least_share is (0.0,) and policy 'esd:1' gives",
    "dispatch.cache_rows=9": "cache of 9 rows cannot hold a micro-batch",
    "dispatch.policy=fae:0.99": "hot set is too large",
    "memory.expire_steps=2": "keys cannot be forgotten after 2 steps while 2 are under way",
    "memory.budget_mb=1": "rows are not divided into chunks",
    "curve_folder=nowhere": "no usable CURVE keys for 'server' in nowhere",
}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["memory.budget_mb=1"], "rows are not divided into chunks; expected rows.chunks"),
        (["memory.prune_share=0.5"], "rows are not divided into chunks; expected rows.chunks"),
        (["memory.budget_mb=0.01", "rows.chunks=2"], "memory.budget_mb = 0.01 has room for 163 chunks, and a batch"),
        (["rows.chunks=1", "dispatch.policy=fae:0.2:8"], "'fae:0.2' replicates rows, and rows.chunks is 1"),
        (["memory.columns=0.5"], "rows are not divided into chunks; expected rows.chunks"),
        (["memory.columns=0.5", "rows.chunks=2", "rows.optimizer=sgd"], "rows.optimizer is 'sgd'; expected 'adagrad'"),
        (["rows.chunks=2", "memory.prune_shape=1"], "memory.prune_shape is '1' for 2 chunks"),
    ],
)
def test_what_cannot_be_pruned_is_found_first(settings: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_start(load_settings(None, settings))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["rows.chunks=3"], "rows of 16 columns cannot be divided into 3 chunks"),
        (["rows.chunks=8", "rows.dim=12"], "rows of 12 columns cannot be divided into 8 chunks"),
        (["memory.budget_mb=1", "memory.prune_share=0.5"], "both to 1 MiB and by a share of 0.5; expected one"),
    ],
)
def test_settings_of_pruning_that_contradict_each_other_are_refused(settings: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_settings(None, settings)


@pytest.mark.parametrize("setting", WRONG)
def test_a_setting_with_which_a_process_would_fail_is_found_first(setting: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(WRONG[setting])):
        check_start(load_settings(None, [setting]))


def test_keys_are_forgotten_after_steps_or_hours_and_not_after_both() -> None:
    with pytest.raises(ConfigError, match="both after 100 steps and after 24 hours; expected one of the two"):
        load_settings(None, ["memory.expire_steps=100", "memory.expire_hours=24"])


def test_keys_are_admitted_by_number_or_by_chance_and_not_by_both() -> None:
    with pytest.raises(ConfigError, match=r"both after 3 samples and with probability 0\.5; expected one"):
        load_settings(None, ["memory.admit_after=3", "memory.admit_share=0.5"])


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:5600", "tcp://127.0.0.1", "tcp://h:70000", "tcp://h h:1", "tcp://:1", ""]
)
@pytest.mark.parametrize("name", ["dispatch.endpoint", "dispatch.status_endpoint", "ps.endpoints"])
def test_a_malformed_endpoint_is_a_wrong_setting(name: str, endpoint: str) -> None:
    if (name, endpoint) != ("ps.endpoints", ""):
        with pytest.raises(ConfigError, match=f"setting {name}: .* is no endpoint; expected tcp://HOST:PORT"):
            load_settings(None, [f"{name}={endpoint}"])


@pytest.mark.parametrize("name", ["dispatch.control_endpoint", "dispatch.feed_endpoint"])
def test_commands_and_the_journal_are_private_unless_an_endpoint_is_given(name: str) -> None:
    section, field = name.split(".")
    assert getattr(getattr(load_settings(None, []), section), field) == PRIVATE
    given = load_settings(None, [f"{name}=tcp://127.0.0.1:5600"])
    assert getattr(getattr(given, section), field) == "tcp://127.0.0.1:5600"
    with pytest.raises(ConfigError, match=f"setting {name}: 'secret' is no endpoint; expected private, or tcp://"):
        load_settings(None, [f"{name}=secret"])
    with pytest.raises(ConfigError, match=r"'tcp://0.0.0.0:5600' can be reached from other machines"):
        check_start(load_settings(None, [f"{name}=tcp://0.0.0.0:5600"]))


@pytest.mark.parametrize("name", ["dispatch.endpoint", "dispatch.status_endpoint", "ps.endpoints"])
def test_what_other_machines_must_reach_cannot_be_private(name: str) -> None:
    with pytest.raises(ConfigError, match="'private' is no endpoint; expected tcp://HOST:PORT"):
        load_settings(None, [f"{name}=private"])


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:*", "tcp://[::1]:5600", "tcp://edge-1.local:0", "ipc:///tmp/x"])
def test_an_endpoint_may_name_any_host_and_port(endpoint: str) -> None:
    assert load_settings(None, [f"dispatch.endpoint={endpoint}"]).dispatch.endpoint == endpoint


def test_keys_are_wanted_for_every_worker(tmp_path: Path) -> None:
    keys(tmp_path / "keys", ["worker-0"])
    with pytest.raises(ConfigError, match="no usable CURVE keys for 'worker-1'"):
        check_start(load_settings(None, [f"curve_folder={tmp_path / 'keys'}", "dispatch.workers=2"]))


def test_with_keys_only_a_ring_needs_leave(tmp_path: Path) -> None:
    keys(tmp_path / "keys", ["worker-0", "worker-1"])
    two = [f"curve_folder={tmp_path / 'keys'}", "dispatch.workers=2"]
    for hub in (
        ["trainer.reduce=auto"],
        ["trainer.reduce=hub"],
        ["trainer.reduce=ring", "trainer.unencrypted_reduce=1"],
    ):
        check_start(load_settings(None, [*two, *hub]))
    for ring in ("trainer.reduce=ring", "trainer.reduce=gloo", "trainer.reduce=nccl", "dispatch.policy=fae"):
        with pytest.raises(ConfigError, match=r"2 workers sum dense gradients over Gloo or NCCL, .*reduce = 'hub'"):
            check_start(load_settings(None, [*two, ring]))


def test_a_hub_for_a_policy_that_needs_a_ring_is_found_first() -> None:
    with pytest.raises(ConfigError, match=r"replicates rows, .* expected a ring"):
        check_start(load_settings(None, ["trainer.reduce=hub", "dispatch.policy=fae"]))


def test_cross_layers_that_save_nothing_are_found_first() -> None:
    settings = load_settings(None, ["model.cross=low_rank", "model.cross_rank=100000"])
    with pytest.raises(ConfigError, match="cross layers of rank 100000 cannot be built"):
        check_start(settings)


def test_settings_that_are_right_pass() -> None:
    check_start(load_settings())


@pytest.mark.parametrize("error", [CacheTooSmall, NoGpu, DeviceMissing])
def test_what_no_restart_can_mend_is_a_wrong_setting(error: type[Exception]) -> None:
    assert issubclass(error, ConfigError)  # so the process ends with status 2, which no supervisor restarts


def test_a_cache_that_cannot_hold_a_micro_batch_is_told_before_anything_starts(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    told = run("up", "--run", folder, "--set", "dispatch.cache_rows=100", "--samples", "1000")
    assert told.returncode == 2
    assert "raise dispatch.cache_rows" in " ".join(told.stderr.split())
    assert not folder.exists()
