"""Publishes the status of a run: on a PUB socket for displays, as gauges for Prometheus."""

from time import monotonic

import msgspec
import zmq

from dispatch.progress.status import Status
from dispatch.tally import WorkerTraffic
from infra.telemetry import Meter
from infra.wire import Curve, bind

STATUS_SECONDS = 0.25
"""between two statuses"""
BYTES = tuple(field for field in WorkerTraffic.__struct_fields__ if field.endswith("_bytes"))
"""kinds of traffic that are counted in bytes"""
ROWS = ("miss_pulls", "update_pushes", "evict_pushes", "behind_pushes", "flush_pushes", "all_reduces")
"""kinds that are counted in rows"""


class StatusPublisher:
    """The socket that statuses leave by."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, curve: Curve | None, meter: Meter
    ) -> None:
        self._socket = context.socket(zmq.PUB)
        self.endpoint = bind(self._socket, endpoint, curve)
        self._meter = meter
        self._published = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next status."""
        return monotonic() - self._published > STATUS_SECONDS

    def publish(self, status: Status) -> None:
        self._published = monotonic()
        self._socket.send(msgspec.json.encode(status))
        self._set_gauges(status)

    def close(self) -> None:
        self._socket.close()

    def _set_gauges(self, status: Status) -> None:
        quality = status.quality
        gauges = {
            "lag": status.events.lag,
            "fields_absent": len(status.fields.absent),
            "generation": status.generation,
            "samples_per_second": status.samples_per_second,
            "logloss": quality.logloss,
            "auc": quality.auc,
            "calibration": quality.calibration,
            "not_finite": quality.not_finite,
        }
        for name, value in gauges.items():
            if value is not None:
                self._meter.gauge(name, value)
        for field, share in status.fields.present.items():
            self._meter.gauge("field_present_share", share, field=field)
        for worker in status.workers:
            for kind in BYTES:
                self._meter.gauge(
                    "worker_bytes", getattr(worker.traffic, kind), worker=worker.name, kind=kind.removesuffix("_bytes")
                )
            for kind in ROWS:
                self._meter.gauge("worker_rows", getattr(worker.traffic, kind), worker=worker.name, kind=kind)
            self._meter.gauge("worker_parked", int(worker.is_parked), worker=worker.name)
            if worker.measured_gbit is not None:
                self._meter.gauge("link_gbit", worker.measured_gbit, worker=worker.name)
