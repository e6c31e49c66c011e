"""What reaches the log and the metrics endpoint."""

import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from structlog.testing import capture_logs

from infra.config import Section
from infra.errors import ConfigError
from infra.telemetry import MASK, Meter, Refusals, configure_logging, describe, start_metrics


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Where this test's process logs to as JSON lines."""
    stream = configure_logging("worker-1", "demo", "json", path=tmp_path / "log")
    yield tmp_path / "log"
    structlog.reset_defaults()
    stream.close()


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_json_lines_carry_run_and_process_from_every_thread(path: Path) -> None:
    log = structlog.get_logger()
    thread = threading.Thread(target=log.info, args=("from a thread",))
    thread.start()
    thread.join()
    log.info("step", samples=1024)
    assert [(line["event"], line["run"], line["process"]) for line in lines(path)] == [
        ("from a thread", "demo", "worker-1"),
        ("step", "demo", "worker-1"),
    ]


def test_level_hides_what_is_below(path: Path) -> None:
    structlog.get_logger().debug("hidden")
    structlog.get_logger().info("shown")
    assert [line["event"] for line in lines(path)] == ["shown"]


def test_console_lines_go_to_stderr_with_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("dispatcher", "demo")
    try:
        raise OSError("disk on fire")
    except OSError:
        structlog.get_logger().exception("cannot write")
    structlog.reset_defaults()
    out, err = capsys.readouterr()
    assert out == ""
    assert "cannot write" in err
    assert "OSError: disk on fire" in err


def test_exception_in_json_stays_one_line(path: Path) -> None:
    try:
        raise OSError("disk on fire")
    except OSError:
        structlog.get_logger().exception("cannot write")
    (line,) = lines(path)
    assert "disk on fire" in str(line["exception"])


def test_secret_never_reaches_the_log(path: Path) -> None:
    structlog.get_logger().info("settings", api={"token": "hunter2"}, database="postgresql://me:hunter2@db/freshet")
    assert "hunter2" not in path.read_text()
    assert path.read_text().count(MASK) == 2


def test_describe_masks_secrets_at_any_depth_and_nothing_else() -> None:
    class Login(Section):
        user: str = "me"
        password: str = "hunter2"

    described = describe(
        {"kafka": Login(), "list": [{"api_key": "hunter2"}], "typed": SecretStr("hunter2"), "keys": 26, "rate": 0.01}
    )
    assert described == {
        "kafka": {"user": "me", "password": MASK},
        "list": [{"api_key": MASK}],
        "typed": MASK,
        "keys": 26,
        "rate": 0.01,
    }


def test_describe_shows_that_a_secret_is_not_set() -> None:
    described = describe({"token": None, "password": "", "typed": SecretStr("")})
    assert described == {"token": None, "password": "", "typed": ""}


def test_metrics_are_served_on_the_port_returned() -> None:
    registry = CollectorRegistry()
    meter = Meter(registry)
    meter.count("rows_pulled", 3, worker="0")
    meter.count("rows_pulled", 4, worker="0")
    meter.gauge("lag", 17)
    meter.observe("step", 0.25, phase="pull")
    port = start_metrics(registry=registry)
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    assert 'freshet_rows_pulled_total{worker="0"} 7.0' in text
    assert "freshet_lag 17.0" in text
    assert 'freshet_step_seconds_count{phase="pull"} 1.0' in text


def test_metrics_port_in_use_is_a_config_error() -> None:
    port = start_metrics(registry=CollectorRegistry())
    with pytest.raises(ConfigError, match="choose another"):
        start_metrics(port, registry=CollectorRegistry())


def test_one_name_for_two_kinds_is_refused() -> None:
    meter = Meter(CollectorRegistry())
    meter.gauge("lag", 1)
    with pytest.raises(ValueError, match="Gauge and was used as a Counter"):
        meter.count("lag")


def test_refused_messages_are_all_counted_and_rarely_logged() -> None:
    registry, now = CollectorRegistry(), [0.0]
    refusals = Refusals(Meter(registry), clock=lambda: now[0])
    with capture_logs() as logs:
        for _ in range(1_000):
            refusals.add("Push", b"stranger", "no")
        now[0] = Refusals.LOG_SECONDS
        refusals.add(Refusals.UNREADABLE, b"stranger", "no")
    assert (refusals.total, refusals.by_type) == (1_001, {"Push": 1_000, "unreadable": 1})
    assert registry.get_sample_value("freshet_refused_messages_total", {"message": "Push"}) == 1_000
    assert [(line["message"], line["not_logged"]) for line in logs] == [("Push", 0), ("unreadable", 999)]
