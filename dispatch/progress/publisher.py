"""Publishes the status of a run: on a PUB socket for displays, as gauges for Prometheus."""

from time import monotonic

import msgspec
import zmq

from dispatch.placement.traffic import WorkerTraffic
from dispatch.progress.quality import QualityWindow
from dispatch.progress.status import ServedStatus, Status, WorkerStatus
from infra.base.telemetry import Meter
from infra.base.wire import Curve, bind

STATUS_SECONDS = 0.25
"""Time between two statuses."""
GAUGES_SECONDS = 1.0
"""Time between two updates of the gauges: with 8 workers one takes 2 ms, and metrics are scraped less often."""
BYTES = tuple(field for field in WorkerTraffic.__struct_fields__ if field.endswith("_bytes"))
"""Kinds of traffic that are counted in bytes."""
ROWS = ("miss_pulls", "update_pushes", "evict_pushes", "behind_pushes", "flush_pushes", "all_reduces")
"""Kinds that are counted in rows."""
BYTES_OF_A_GBIT = 1e9 / 8


class StatusPublisher:
    """The socket on which statuses are published."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, curve: Curve | None, meter: Meter
    ) -> None:
        self._socket = context.socket(zmq.PUB)
        self.endpoint = bind(self._socket, endpoint, curve)
        self._meter = meter
        self._published = 0.0
        self._gauged = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next status."""
        return monotonic() - self._published > STATUS_SECONDS

    def publish(self, status: Status) -> None:
        self._published = monotonic()
        self._socket.send(msgspec.json.encode(status))
        if self._published - self._gauged > GAUGES_SECONDS:
            self._gauged = self._published
            self._set_gauges(status)

    def close(self) -> None:
        self._socket.close()

    def _set_gauges(self, status: Status) -> None:
        quality = status.quality
        meter = self._meter
        gauges = {
            "lag_events": status.events.lag,
            "fields_absent": len(status.fields.absent),
            "generation": status.generation,
            "journal_cursor": status.cursor,
            "samples_per_second": status.samples_per_second,
            "step_interval_seconds": status.step_ms / 1000,
            "alpha": status.alpha,
            "logloss": quality.logloss,
            "auc": quality.auc,
            "calibration": quality.calibration,
            "keys": status.keys.known,
            "chunks_live": status.chunks.live,
            "rows_bytes": status.keys.shard_bytes,
        }
        for name, value in gauges.items():
            if value is not None:
                meter.gauge(name, value)
        if status.served.servers or status.served.checkpoint:
            self._set_gauges_of_snapshots(status.served)
        meter.total("not_finite", quality.not_finite)
        meter.total("keys_forgotten", status.keys.forgotten)
        meter.total("keys_rare", status.keys.rare)
        meter.total("chunks_pruned", status.chunks.pruned)
        meter.total("chunks_brought_back", status.chunks.brought_back)
        if status.over_time.windows:
            self._set_gauges_of_window(status.over_time.windows[-1])
        for label, found in status.labels.items():
            if found.quality.logloss is not None:
                meter.gauge("label_logloss", found.quality.logloss, label=label)
            if found.quality.auc is not None:
                meter.gauge("label_auc", found.quality.auc, label=label)
            if found.quality.calibration is not None:
                meter.gauge("label_calibration", found.quality.calibration, label=label)
        meter.total("label_alarms", status.drift.label_alarms)
        meter.total("field_alarms", status.drift.field_alarms)
        for field, drift in status.drift.fields.items():
            meter.gauge("field_drift_ratio", drift, field=field)
        for field, share in status.fields.present.items():
            meter.gauge("field_present_ratio", share, field=field)
        for worker in status.workers:
            self._set_gauges_of(worker)

    def _set_gauges_of(self, worker: WorkerStatus) -> None:
        name = worker.name
        meter = self._meter
        for kind in BYTES:
            moved = getattr(worker.traffic, kind)
            meter.total("worker_bytes", moved, worker=name, kind=kind.removesuffix("_bytes"))
        for kind in ROWS:
            meter.total("worker_rows", getattr(worker.traffic, kind), worker=name, kind=kind)
        meter.gauge("worker_parked", int(worker.is_parked), worker=name)
        if worker.measured_gbit is not None:
            meter.gauge("link_bytes_per_second", worker.measured_gbit * BYTES_OF_A_GBIT, worker=name)
        if worker.measured_uplink_gbit is not None:
            meter.gauge("uplink_bytes_per_second", worker.measured_uplink_gbit * BYTES_OF_A_GBIT, worker=name)

    def _set_gauges_of_window(self, window: QualityWindow) -> None:
        meter = self._meter
        whole = window.quality
        for name, value in (
            ("window_logloss", whole.logloss),
            ("window_auc", whole.auc),
            ("window_calibration", whole.calibration),
        ):
            if value is not None:
                meter.gauge(name, value)
        for found in window.slices:
            for name, value in (
                ("slice_logloss", found.logloss),
                ("slice_auc", found.auc),
                ("slice_calibration", found.calibration),
            ):
                if value is not None:
                    meter.gauge(name, value, field=found.field, key=found.key)

    def _set_gauges_of_snapshots(self, served: ServedStatus) -> None:
        fresh = served.freshness
        meter = self._meter
        meter.gauge("servers", served.servers)
        meter.gauge("served_step", served.step or 0)
        meter.gauge("served_timeline", served.timeline or 0)
        meter.gauge("version_held", int(bool(served.held)))
        for quantile, seconds in (("0.5", fresh.p50_seconds), ("0.99", fresh.p99_seconds)):
            if seconds is not None:
                meter.gauge("freshness_seconds", seconds, quantile=quantile)
        if fresh.age_seconds is not None:
            meter.gauge("served_age_seconds", fresh.age_seconds)
        meter.total("events_ahead", fresh.ahead)
