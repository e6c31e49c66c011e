"""The newest status of a run, as its dispatcher publishes it; reading it involves neither the dispatcher nor SQL."""

import asyncio
from time import monotonic

import msgspec
import structlog
import zmq
import zmq.asyncio

from api.runs.places import Place
from dispatch.progress.status import Status
from infra.base.errors import FreshetError
from infra.base.run_folder import STATUS_WORD
from infra.base.wire import connect

SILENT_SECONDS = 5.0
"""Age above which a status no longer counts: the run does not answer any more."""
LOOK_SECONDS = 1.0
"""How often to check whether the dispatcher has a new address."""


class LiveStatus:
    """Subscribes to the statuses of one run."""

    def __init__(self, context: zmq.asyncio.Context, place: Place) -> None:
        self._context = context
        self._place = place
        self._decoder = msgspec.json.Decoder(Status)
        self._received_at = 0.0
        self.status: Status | None = None
        """The newest status; None before the first one."""
        self.encoded = b"null"
        """The newest status as JSON, encoded once for all readers."""
        self.changed = asyncio.Event()
        """Set, and replaced by a new event, whenever a status arrives."""

    @property
    def is_silent(self) -> bool:
        """Whether no status has arrived for a while."""
        return self.status is None or monotonic() - self._received_at > SILENT_SECONDS

    async def receive(self) -> None:
        """Receives until it is cancelled; reconnects when the dispatcher is restarted."""
        while True:
            endpoint = self._place.endpoint(STATUS_WORD)
            if endpoint is None:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            try:
                await self._receive(endpoint)
            except (zmq.ZMQError, FreshetError) as error:
                structlog.get_logger().warning("no status of a run", run=self._place.name, reason=str(error))
                await asyncio.sleep(LOOK_SECONDS)

    async def _receive(self, endpoint: str) -> None:
        """Receives from one endpoint for as long as it is the dispatcher's."""
        with self._context.socket(zmq.SUB) as socket:
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.CONFLATE, 1)  # only the newest status matters, so none are queued
            socket.subscribe(b"")
            connect(socket, endpoint, self._place.curve())  # type: ignore[arg-type]
            while True:
                if await socket.poll(int(1000 * LOOK_SECONDS)):
                    self._read_status(await socket.recv())
                elif self._place.endpoint(STATUS_WORD) != endpoint:
                    return

    def _read_status(self, message: bytes) -> None:
        try:
            status = self._decoder.decode(message)
        except msgspec.DecodeError as error:
            structlog.get_logger().warning("a status cannot be read", run=self._place.name, reason=str(error))
            return
        if status.run != self._place.name:
            return
        self.status = status
        self._received_at = monotonic()
        self.encoded = msgspec.json.encode(status)
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
