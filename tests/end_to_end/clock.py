"""Time that passes in shaped links and nowhere else, so that what a run measures does not depend on the machine."""

import math
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from infra.base.link import Link
from ps.timing import Asked, LinkTimer

TICK_SECONDS = 1e-6
"""what passes when somebody looks at the clock: nothing takes no time at all"""


def told_rate(link: Link) -> float:
    """Bytes a second; without end where none is told."""
    return math.inf if link.gbit_per_second is None else link.gbit_per_second * 1e9 / 8


class TimedSocket(zmq.Socket[bytes]):
    """A connection that hands the size of each message it receives to the link that carried it.

    What it sends takes the sender no time: the link carries it while the sender goes on.
    """

    carry: Callable[[int], Any]

    def recv_multipart(self, *arguments: Any, **options: Any) -> Any:
        frames = super().recv_multipart(*arguments, **options)
        self.carry(sum(map(len, frames)))
        return frames


class ThreadClock:
    """A clock for each thread: workers and shards that share a machine do not wait for each other's turn."""

    def __init__(self) -> None:
        self._times: dict[int, float] = defaultdict(float)

    def now(self) -> float:
        return self.advance(TICK_SECONDS)

    def advance(self, seconds: float) -> float:
        me = threading.get_ident()
        self._times[me] += seconds
        return self._times[me]

    def together(self) -> float:
        """What has passed in all threads: a step of several workers takes as long as all their transfers in a row."""
        return sum(list(self._times.values()))

    def replace_clocks(self, monkeypatch: pytest.MonkeyPatch, rate: Callable[[Link], float] = told_rate) -> None:
        """Transfers over shaped links take their time on this clock, by which workers and shards measure them, and the
        dispatcher steps.

        A thread that receives waits itself: relays have no time of their own.
        """

        def connect(link: Link, context: Any, endpoint: str, curve: Any = None, options: Any = None) -> Any:
            socket = context.socket(zmq.DEALER, socket_class=TimedSocket)
            socket.carry = lambda nbytes: self.advance(nbytes / rate(link))
            for option, value in (options or {}).items():
                socket.set(option, value)
            socket.connect(endpoint)
            return socket

        monkeypatch.setattr(Link, "connect", connect)
        coming = LinkTimer.coming

        def timed(timer: LinkTimer, of: Asked, was_awaited: bool) -> None:
            """An answer that nobody waited for has its time, too: by this clock it arrives when it is taken."""
            coming(timer, of, was_awaited=True)

        monkeypatch.setattr(LinkTimer, "coming", timed)
        # shards time what they are sent by their own clock, on which no link takes time: let there be one piece
        monkeypatch.setattr("ps.dense.range.MOST_PIECES", 1)
        monkeypatch.setattr("ps.shard.time_push", lambda _pull, _push: (0, 0.0))
        monkeypatch.setattr(Link, "exchange", lambda link, nbytes: self.advance(nbytes / rate(link)))
        monkeypatch.setattr("time.perf_counter", self.now)
        monkeypatch.setattr("dispatch.progress.times.monotonic", self.together)
        monkeypatch.setattr("trainer.worker.time", SimpleNamespace(monotonic=self.now))
        for name, module in list(sys.modules.items()):
            if name.startswith(("ps.", "trainer.")) and hasattr(module, "perf_counter"):
                monkeypatch.setattr(module, "perf_counter", self.now)
