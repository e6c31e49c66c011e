"""What reaches the log and the metrics endpoint."""

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from structlog.testing import capture_logs

from infra.base.config import Section
from infra.base.errors import ConfigError
from infra.base.telemetry import MASK, Meter, Refusals, configure_logging, describe, start_metrics


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


def test_a_log_on_a_full_disk_is_warned_of_once_and_the_process_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    stream = configure_logging("supervisor", "demo", path=tmp_path / "log")
    for number in range(3):
        structlog.get_logger().info("lost", number=number)
    structlog.reset_defaults()
    stream.close()
    (warning,) = capsys.readouterr().err.splitlines()
    assert f"cannot use {tmp_path}/log: No space left on device; expected room on its disk; make room" in warning


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
    meter.count("refused_messages", 3, message="Push")
    meter.count("refused_messages", 4, message="Push")
    meter.gauge("lag_events", 17)
    meter.observe("worker_phase", 0.25, phase="pull")
    port = start_metrics(registry=registry)
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=100).read().decode()
    assert 'freshet_refused_messages_total{message="Push"} 7.0' in text
    assert "freshet_lag_events 17.0" in text
    assert 'freshet_worker_phase_seconds_count{phase="pull"} 1.0' in text
    assert "# HELP freshet_lag_events Events in the stream that are not in a batch yet." in text


def test_metrics_port_in_use_is_a_config_error() -> None:
    port = start_metrics(registry=CollectorRegistry())
    with pytest.raises(ConfigError, match="choose another"):
        start_metrics(port, registry=CollectorRegistry())


@pytest.mark.parametrize(
    "use",
    [
        lambda meter: meter.gauge("samples_total", 1),
        lambda meter: meter.count("nothing"),
        lambda meter: meter.gauge("lag_events", 1, worker="a"),
        lambda meter: meter.gauge("worker_parked", 1),
    ],
)
def test_a_metric_that_the_catalogue_does_not_have_so_is_refused(use: Callable[[Meter], None]) -> None:
    with pytest.raises(ValueError, match=r"enter it in infra/base/metrics/catalogue\.py"):
        use(Meter(CollectorRegistry()))


def test_a_total_that_is_counted_elsewhere_follows_it_and_begins_anew_when_that_does() -> None:
    registry = CollectorRegistry()
    meter = Meter(registry)
    for value in (5, 5, 8, 2):
        meter.total("worker_rows", value, worker="a", kind="miss_pulls")
        assert registry.get_sample_value("freshet_worker_rows_total", {"worker": "a", "kind": "miss_pulls"}) == value


LOG_A_LINE = """
import structlog
from infra.base.telemetry import configure_logging
configure_logging("ps", "r")
structlog.get_logger().info("hi")
"""


@pytest.mark.parametrize(
    ("terminal", "coloured"),
    [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({"TERM": "xterm", "NO_COLOR": "1"}, False)],
)
def test_logs_on_a_terminal_are_coloured_where_colours_are_wanted(terminal: dict[str, str], coloured: bool) -> None:
    master, side = os.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("TERM", "NO_COLOR", "FORCE_COLOR")}
    env = {**kept, "PYTHONPATH": str(Path.cwd()), **terminal}
    subprocess.run([sys.executable, "-c", LOG_A_LINE], stderr=side, env=env, check=True, timeout=100)
    shown = os.read(master, 10_000)
    os.close(side)
    os.close(master)
    assert b"hi" in shown
    assert (b"\x1b" in shown) is coloured


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
