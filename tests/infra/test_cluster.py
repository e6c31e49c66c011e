import pytest

from infra.cluster import KnownBest, check_ports
from infra.errors import ConfigError
from infra.settings import load_settings
from ingest.synthetic import CHUNK, World


def test_the_known_best_is_the_share_of_clicks_ranked_above_others() -> None:
    chunk = World(1).chunk(0)
    clicks, others = (chunk.probabilities_B[chunk.labels_B == label] for label in (1, 0))
    share = float((clicks[:, None] > others[None, :]).mean())
    assert KnownBest(1)(CHUNK) == pytest.approx(share, abs=1e-3)


def test_the_known_best_leaves_room_to_learn_and_adds_up() -> None:
    best = KnownBest(0)
    assert best(0) == 0.5
    assert 0.75 < best(20_000) < 0.9
    assert best(30_000) == KnownBest(0)(30_000)


def test_one_metrics_port_for_many_processes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"telemetry\.metrics_port = 9100 .*endpoints/NAME\.metrics; unset it"):
        check_ports(load_settings(None, ["telemetry.metrics_port=9100"]))
