"""Link shaping: makes one machine's transfers take the time they would take over a slower link.

A worker's link has one token bucket in each direction. A transfer reserves its bytes there and learns when the link
will have carried them: transfers follow each other without a gap, however late a thread wakes up. A relay
(``infra/base/relay.py``) holds messages back until then, while their sender continues; other transfers sleep. A link
that is not shaped has neither.
"""

import math
import threading
import time
from collections.abc import Callable

import zmq

from infra.base.errors import ConfigError
from infra.base.relay import Relay
from infra.base.wire import Curve, SocketOptions, connected

PAYLOAD_SHARE = 1448 / 1514
"""Share of payload in a full packet of TCP over Ethernet."""
BURST_BYTES = 16 * 1024
"""Bytes that may pass at once after the link was idle."""

LONGEST_CREDIT_SECONDS = 0.1
"""Most credit for oversleeping: longer means that the process was suspended, and a real link would not catch up."""


class Bucket:
    """One direction of a link. Thread-safe: transfers queue up one after the other."""

    def __init__(
        self,
        bytes_per_second: float,
        burst_bytes: int = BURST_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = bytes_per_second
        self._burst_seconds = burst_bytes / bytes_per_second
        self._clock = clock
        self._due = -math.inf
        """When the link has carried everything so far."""
        self._credit_seconds = 0.0
        self._turn = threading.Lock()

    def reserve(self, nbytes: int) -> float:
        """The time, by the clock, at which the link will have carried these bytes, too."""
        with self._turn:
            earliest = self._clock() - max(self._burst_seconds, self._credit_seconds)
            self._credit_seconds = 0.0
            self._due = max(self._due, earliest) + nbytes / self._rate
            return self._due

    def credit(self, overslept_seconds: float) -> None:
        """Credits the time that a caller of ``reserve`` overslept to the next transfer."""
        with self._turn:
            self._credit_seconds = min(max(0.0, overslept_seconds), LONGEST_CREDIT_SECONDS)


class Link:
    """One worker's link, for use by one thread. Without a speed, or if the network has that speed, it is not shaped."""

    def __init__(
        self,
        gbit_per_second: float | None = None,
        burst_bytes: int = BURST_BYTES,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        is_shaped: bool = True,
        payload_share: float = 1.0,
        uplink_gbit: float | None = None,
    ) -> None:
        """payload_share: share of payload in what the link carries, the rest being headers. uplink_gbit: speed of what
        the worker sends; None: as fast as what it receives.
        """
        self.gbit_per_second = gbit_per_second
        self.uplink_gbit = uplink_gbit
        self._buckets: tuple[Bucket, Bucket] | None = None
        """Buckets for up and down, if shaped."""
        self._clock = clock
        self._sleep = sleep
        self._relay: Relay | None = None
        if gbit_per_second is None and uplink_gbit is not None:
            raise ConfigError(
                f"a link cannot have an uplink of {uplink_gbit} Gbit/s alone; expected that of the other direction, "
                "too; give both"
            )
        if gbit_per_second is not None:
            down = payload_share * _bytes_per_second(gbit_per_second)
            up = down if uplink_gbit is None else payload_share * _bytes_per_second(uplink_gbit)
            self._buckets = (Bucket(up, burst_bytes, clock), Bucket(down, burst_bytes, clock)) if is_shaped else None

    def connect(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        curve: Curve | None = None,
        options: SocketOptions | None = None,
    ) -> "zmq.Socket[bytes]":
        """A connection over this link: a DEALER socket with these options, or one that represents it.

        All connections of a shaped link belong to one context. Close them first, then the link, then the context.
        """
        options = options or {}
        if self._buckets is None:
            return connected(context, endpoint, curve, options)
        if self._relay is None:
            up, down = self._buckets
            self._relay = Relay(context, up.reserve, down.reserve, self._clock, self._sleep)
        unbounded = {**options, zmq.SNDHWM: 0}  # a relay that waited for one connection would delay the others
        return self._relay.add(connected(self._relay.context, endpoint, curve, unbounded))

    def disconnect(self, socket: "zmq.Socket[bytes]") -> None:
        """Ends a connection before the link ends; what is still under way over it is dropped."""
        socket.close(linger=0)
        if self._relay is not None:
            self._relay.drop(socket)

    def exchange(self, nbytes: int) -> None:
        """Blocks until the link has carried that many bytes in both directions, after the messages under way."""
        if self._relay is not None:
            self._relay.check()
        if self._buckets is not None:
            due = max(bucket.reserve(nbytes) for bucket in self._buckets)
            if (left := due - self._clock()) > 0:
                self._sleep(left)
            for bucket in self._buckets:
                bucket.credit(self._clock() - due)

    def close(self) -> None:
        """Delivers what was sent over connections that have been closed, as far as their sockets linger for it."""
        relay, self._relay = self._relay, None
        if relay is not None:
            relay.close()


def _bytes_per_second(gbit_per_second: float) -> float:
    if not 0 < gbit_per_second < float("inf"):
        raise ConfigError(
            f"a link cannot have {gbit_per_second} Gbit/s; expected a number above 0; "
            "correct it, or leave it out for a link that is not shaped"
        )
    return gbit_per_second * 1e9 / 8
