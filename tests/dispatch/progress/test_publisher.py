import msgspec
import pytest
import zmq
from prometheus_client import CollectorRegistry

from dispatch.placement.traffic import WorkerTraffic
from dispatch.progress.publisher import StatusPublisher
from dispatch.progress.quality import DriftStatus, Quality, QualityOverTime, QualityWindow, SliceQuality
from dispatch.progress.status import EventCounts, FieldsStatus, Status, WorkerStatus
from infra.base.telemetry import Meter

MOVED = WorkerTraffic(samples=5, miss_pulls=6, behind_pushes=4, pulled_bytes=70, order_bytes=300)
STATUS = Status(
    run="r",
    generation=2,
    quality=Quality(samples=10, auc=0.75),
    events=EventCounts(lag=7),
    fields=FieldsStatus(present={"user": 0.5, "item": 0.0}, absent=("item",)),
    workers=(
        WorkerStatus(name="a", measured_gbit=0.5, measured_uplink_gbit=0.05, traffic=MOVED),
        WorkerStatus(name="b", is_parked=True),
    ),
)


def test_a_status_reaches_whoever_subscribes() -> None:
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        publisher = StatusPublisher(context, "tcp://127.0.0.1:*", None, Meter(CollectorRegistry()))
        socket.subscribe(b"")
        socket.connect(publisher.endpoint)
        while not socket.poll(20):
            publisher.publish(STATUS)
        assert msgspec.json.decode(socket.recv(), type=Status) == STATUS
        publisher.close()


def test_known_figures_are_gauges_and_unknown_ones_are_left_out() -> None:
    registry = CollectorRegistry()
    with zmq.Context() as context:
        publisher = StatusPublisher(context, "tcp://127.0.0.1:*", None, Meter(registry))
        publisher.publish(STATUS)
        publisher.close()
    values = [registry.get_sample_value(f"freshet_{name}") for name in ("lag_events", "generation", "auc", "logloss")]
    assert values == [7, 2, 0.75, None]
    speeds = [registry.get_sample_value("freshet_link_bytes_per_second", {"worker": name}) for name in "ab"]
    assert speeds == [62_500_000, None]
    uplinks = [registry.get_sample_value("freshet_uplink_bytes_per_second", {"worker": name}) for name in "ab"]
    assert uplinks == [6_250_000, None]
    assert [registry.get_sample_value("freshet_worker_parked", {"worker": name}) for name in "ab"] == [0, 1]
    shares = [registry.get_sample_value("freshet_field_present_ratio", {"field": name}) for name in ("user", "item")]
    assert (shares, registry.get_sample_value("freshet_fields_absent")) == ([0.5, 0.0], 1)


def test_bytes_are_counted_by_worker_and_kind() -> None:
    registry = CollectorRegistry()
    with zmq.Context() as context:
        publisher = StatusPublisher(context, "tcp://127.0.0.1:*", None, Meter(registry))
        publisher.publish(STATUS)
        publisher.close()
    for worker, kind, expected in (("a", "pulled", 70), ("a", "order", 300), ("b", "order", 0), ("a", "samples", None)):
        assert registry.get_sample_value("freshet_worker_bytes_total", {"worker": worker, "kind": kind}) == expected


def test_rows_are_counted_by_worker_and_kind() -> None:
    registry = CollectorRegistry()
    with zmq.Context() as context:
        publisher = StatusPublisher(context, "tcp://127.0.0.1:*", None, Meter(registry))
        publisher.publish(STATUS)
        publisher.close()
    for worker, kind, expected in (("a", "miss_pulls", 6), ("a", "behind_pushes", 4), ("b", "evict_pushes", 0)):
        assert registry.get_sample_value("freshet_worker_rows_total", {"worker": worker, "kind": kind}) == expected


def test_the_next_status_is_due_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("dispatch.progress.publisher.monotonic", lambda: now[0])
    with zmq.Context() as context:
        publisher = StatusPublisher(context, "tcp://127.0.0.1:*", None, Meter(CollectorRegistry()))
        assert publisher.is_due
        publisher.publish(STATUS)
        assert not publisher.is_due
        now[0] += 1.0
        assert publisher.is_due
        publisher.close()


def test_gauges_follow_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("dispatch.progress.publisher.monotonic", lambda: now[0])
    registry, lags = CollectorRegistry(), []
    with zmq.Context() as context:
        publisher = StatusPublisher(context, "tcp://127.0.0.1:*", None, Meter(registry))
        for lag in (7, 6, 5):
            publisher.publish(msgspec.structs.replace(STATUS, events=msgspec.structs.replace(STATUS.events, lag=lag)))
            lags.append(registry.get_sample_value("freshet_lag_events"))
            now[0] += 0.75
        publisher.close()
    assert lags == [7, 7, 5]


def test_the_newest_window_and_its_slices_are_gauges() -> None:
    registry = CollectorRegistry()
    found = SliceQuality(field="site", key="ff", samples=10, clicks=1, auc=0.6, mean_prediction=0.2, click_rate=0.1)
    whole = SliceQuality(samples=10, clicks=0, logloss=0.5, mean_prediction=0.2, click_rate=0.0)
    window = QualityWindow(first_step=1, last_step=2, samples_before=0, quality=whole, slices=(found,))
    with zmq.Context() as context:
        publisher = StatusPublisher(context, "tcp://127.0.0.1:*", None, Meter(registry))
        publisher.publish(msgspec.structs.replace(STATUS, over_time=QualityOverTime(windows=(window,))))
        publisher.close()
    named = {"field": "site", "key": "ff"}
    values = [registry.get_sample_value(f"freshet_slice_{name}", named) for name in ("auc", "logloss", "calibration")]
    assert values == [0.6, None, 2.0]
    assert registry.get_sample_value("freshet_window_logloss") == 0.5
    assert registry.get_sample_value("freshet_window_calibration") is None


def test_changes_of_the_stream_are_gauges_and_counters() -> None:
    registry = CollectorRegistry()
    drift = DriftStatus(fields={"site": 0.4}, label_alarms=2, field_alarms=1)
    with zmq.Context() as context:
        publisher = StatusPublisher(context, "tcp://127.0.0.1:*", None, Meter(registry))
        publisher.publish(msgspec.structs.replace(STATUS, drift=drift))
        publisher.close()
    assert registry.get_sample_value("freshet_field_drift_ratio", {"field": "site"}) == 0.4
    assert registry.get_sample_value("freshet_label_alarms_total") == 2
    assert registry.get_sample_value("freshet_field_alarms_total") == 1
