"""Where processes are placed, and what their actors are given; a whole cluster is in tests/end_to_end/test_ray.py."""

import os
from pathlib import Path

import pytest

from infra.base.errors import ConfigError
from infra.base.wire import write_curve
from infra.run.nodes.actor import AUTH_MODE
from infra.run.nodes.placing import EDGE, ROLE_LABEL, connected, node_job, placement_of
from infra.run.settings import Settings, load_settings

NOT_EDGE = {ROLE_LABEL: f"!{EDGE}"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    write_curve(tmp_path / "keys", ["server", "worker-0", "worker-1"])
    return load_settings(None, [f"folder={tmp_path}", f"curve_folder={tmp_path / 'keys'}", "ray.worker_gpus=0.5"])


@pytest.mark.parametrize("command", ["dispatcher", "api", "serve"])
def test_what_needs_the_folder_stays_on_this_node(settings: Settings, command: str) -> None:
    assert placement_of(command, settings).is_here


def test_shards_keep_off_edge_nodes_and_workers_ask_for_their_gpus(settings: Settings) -> None:
    assert placement_of("ps", settings).labels == NOT_EDGE
    worker = placement_of("worker", settings)
    assert (worker.gpus, worker.labels, worker.is_here) == (0.5, None, False)


def test_servers_that_others_can_reach_leave_this_node(settings: Settings) -> None:
    elsewhere = load_settings(None, ["api.database=postgresql://db/freshet", "serving.host=0.0.0.0"])
    placement = placement_of("serve", elsewhere)
    assert not placement.is_here
    assert placement.labels == NOT_EDGE


def test_a_worker_gets_its_own_key_and_no_other_secret(settings: Settings) -> None:
    job = node_job(settings, "worker-1", "worker", is_here=False)
    assert set(job["keys"]) == {"worker-1.secret", "server.public"}
    shard = node_job(settings, "ps-0", "ps", is_here=False)
    assert set(shard["keys"]) == {"server.secret", "server.public", "worker-0.public", "worker-1.public"}


def test_a_schema_of_ones_own_travels_as_text(settings: Settings, tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text("version = 1\n")
    stream = settings.stream.model_copy(update={"schema_name": str(own)})
    assert node_job(settings.model_copy(update={"stream": stream}), "ps-0", "ps", is_here=False)["schema"]


def test_a_cluster_without_a_token_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="no token for Ray"), connected("10.0.0.4:6379"):
        pass
    monkeypatch.setenv(AUTH_MODE, "disabled")
    with pytest.raises(ConfigError, match="expected 'token'"), connected("local"):
        pass
