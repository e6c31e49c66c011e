"""The newest status of a run, as its dispatcher publishes it: reads of it touch neither the dispatcher nor SQL."""

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
"""after which a status is that of a run that does not answer any more"""
LOOK_SECONDS = 1.0
"""how often to look whether the dispatcher has another address"""


class LiveStatus:
    """Subscribes to one run."""

    def __init__(self, context: zmq.asyncio.Context, place: Place) -> None:
        self._context = context
        self._place = place
        self._decoder = msgspec.json.Decoder(Status)
        self._received_at = 0.0
        self.status: Status | None = None
        """the newest; None before the first"""
        self.encoded = b"null"
        """that status as JSON, encoded once for all who read it"""
        self.changed = asyncio.Event()
        """set, and replaced by another, whenever a status arrives"""

    @property
    def is_silent(self) -> bool:
        """Whether no status has come for a while."""
        return self.status is None or monotonic() - self._received_at > SILENT_SECONDS

    async def receive(self) -> None:
        """Receives until it is cancelled; connects anew when the dispatcher is started anew."""
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
        """Takes what comes from one endpoint, as long as it is the dispatcher's."""
        with self._context.socket(zmq.SUB) as socket:
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.CONFLATE, 1)
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
