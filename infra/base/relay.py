"""The relay of a shaped link: a thread that carries messages at the link's speed, in both directions at once.

A connection is a DEALER socket, which the thread owns, and a pipe inside the process, whose other end the user has in
place of the socket. The thread receives whole messages on one side, asks the link when it will have carried their last
byte, and delivers them at that time, without a copy. All connections share the link: in each direction messages leave
in the order in which they came in, so a small one after a large one waits for it.

Queues are unbounded, so the user's sends never block.
"""

import itertools
import math
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import zmq

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

POLLER_SECONDS = 0.001
"""Resolution of a poller."""

WAKE_BYTES = 4096
"""Bytes read from the wake-up pipe at a time; one is enough to wake the thread."""

_pipes = itertools.count()


class Connection(NamedTuple):
    """The two sockets of the thread that belong together."""

    near: Socket
    """The thread's end of the pipe to the user."""
    far: Socket
    """The real socket."""


class Carried(NamedTuple):
    """A message under way."""

    due: float
    """When the link has carried its last byte, by the link's clock."""
    to: Socket
    frames: list[zmq.Frame]

    def deliver(self) -> None:
        """Delivers it, or drops it if the connection is gone.

        Queues are unbounded, so a send fails only if a user has closed its end, or a server has refused the connection
        permanently. The other connections of the link continue.
        """
        if not self.to.closed:
            with suppress(zmq.Again):
                self.to.send_multipart(self.frames, zmq.NOBLOCK, copy=False)


class Lane:
    """One direction of a link: the messages under way, in the order in which they are due."""

    def __init__(self, reserve: Callable[[int], float]) -> None:
        self._reserve = reserve
        self._carried: deque[Carried] = deque()

    @property
    def next_due(self) -> float:
        return self._carried[0].due if self._carried else math.inf

    def take_in(self, origin: Socket, to: Socket) -> None:
        """Receives one message; raises zmq.Again if there is none."""
        frames = origin.recv_multipart(zmq.NOBLOCK, copy=False)
        self._carried.append(Carried(self._reserve(sum(map(len, frames))), to, frames))

    def arrived(self, now: float) -> Iterator[Carried]:
        """Removes the messages that are due by now."""
        while self._carried and self._carried[0].due <= now:
            yield self._carried.popleft()


class Relay:
    """The connections of one link, all of one context. For use by one thread.

    An error on the relay's thread ends all connections: further sends of the user raise zmq.Again, and every call here
    raises the error itself.
    """

    def __init__(
        self,
        context: Context,
        reserve_up: Callable[[int], float],
        reserve_down: Callable[[int], float],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._users_context = context
        self.context: Context = zmq.Context.shadow(context)
        """Equal for ZeroMQ; but when the user's context is destroyed, sockets of this one are left to the thread."""
        self._bell, ear = socket.socketpair()
        self._given: dict[Socket, Connection] = {}
        """The connection of each socket that was handed out."""
        self._carrier = Carrier((Lane(reserve_up), Lane(reserve_down)), clock, sleep, ear)
        self._thread = threading.Thread(target=self._carrier.run, name="link", daemon=True)
        self._thread.start()

    def add(self, far: Socket) -> Socket:
        """Takes over a connected socket of this relay's context; returns the socket to use in its place."""
        near, given = _pipe(self.context, self._users_context)
        connection = Connection(near, far)
        if not self._carrier.hand_over(connection):
            given.close()
            self.check()
        self._given[given] = connection
        self.wake()
        return given

    def drop(self, given: Socket) -> None:
        """Ends the connection of a socket that ``add`` returned, and that its user has closed."""
        if (connection := self._given.pop(given, None)) is not None:
            self._carrier.dropped.append(connection)
            self.wake()

    def check(self) -> None:
        """Raises what the thread raised."""
        if self._carrier.error is not None:
            raise self._carrier.error

    def wake(self) -> None:
        """Wakes the thread to check the clock and its instructions."""
        with suppress(OSError):  # the thread has ended
            self._bell.send(b"\0")

    def close(self) -> None:
        """Delivers what was sent, as far as the sockets linger for it, and ends the thread; raises what it raised.

        The sockets that ``add`` returned must be closed first.
        """
        self._carrier.is_closing = True
        self.wake()
        self._thread.join()
        self._bell.close()
        self.check()


class Carrier:
    """What runs on a relay's thread."""

    def __init__(
        self, lanes: tuple[Lane, Lane], clock: Callable[[], float], sleep: Callable[[float], None], ear: socket.socket
    ) -> None:
        self.is_closing = False
        self.error: BaseException | None = None
        self._up, self._down = lanes
        self._clock = clock
        self._sleep = sleep
        self._ear = ear
        self._connections: list[Connection] = []
        self._handed_over: deque[Connection] = deque()
        self.dropped: deque[Connection] = deque()
        """Connections to be ended."""
        self._has_ended = False
        self._ending = threading.Lock()
        """Orders the hand-over of connections and the end of the thread, which closes all it was given."""
        self._routes: dict[Socket, tuple[Lane, Socket]] = {}
        self._poller = zmq.Poller()
        self._poller.register(ear.fileno(), zmq.POLLIN)

    def hand_over(self, connection: Connection) -> bool:
        """Gives the thread a connection; if it has ended, closes the connection and returns False."""
        with self._ending:
            if self._has_ended:
                _close(connection)
            else:
                self._handed_over.append(connection)
            return not self._has_ended

    def run(self) -> None:
        try:
            while not self.is_closing:
                for ready in self._wait():
                    self._attend_to(ready)
                self._deliver()
            self._finish()
        except zmq.ContextTerminated:
            pass  # by the user, who has ended every connection with it
        except BaseException as error:  # raised again by the relay, in the thread that calls it
            self.error = error
        finally:
            self._end()

    def _wait(self) -> list[Socket | int]:
        """Waits for messages and the wake-up pipe, until the next message under way is due; returns what is ready."""
        due = min(self._up.next_due, self._down.next_due)
        left = max(0.0, due - self._clock())
        ready = self._poller.poll(None if left == math.inf else int(left * 1000))
        if not ready and 0 < (left := due - self._clock()) < POLLER_SECONDS:
            self._sleep(left)
        return [each for each, _ in ready]

    def _attend_to(self, ready: Socket | int) -> None:
        """Receives one message, so that sockets take turns; or new connections."""
        if isinstance(ready, zmq.Socket):
            if ready in self._routes:  # else it was dropped a moment ago
                lane, to = self._routes[ready]
                lane.take_in(ready, to)
        else:
            self._ear.recv(WAKE_BYTES)
            self._adopt()
            self._let_go()

    def _adopt(self) -> None:
        while self._handed_over:
            near, far = connection = self._handed_over.popleft()
            self._connections.append(connection)
            self._routes |= {near: (self._up, far), far: (self._down, near)}
            self._poller.register(near, zmq.POLLIN)
            self._poller.register(far, zmq.POLLIN)

    def _let_go(self) -> None:
        """Ends the connections that are not used any more."""
        while self.dropped:
            connection = self.dropped.popleft()
            self._connections.remove(connection)
            for end in connection:
                self._poller.unregister(end)
                del self._routes[end]
                end.close(linger=0)

    def _deliver(self) -> None:
        """Passes on what is due."""
        now = self._clock()
        for lane in (self._up, self._down):
            for message in lane.arrived(now):
                message.deliver()

    def _finish(self) -> None:
        """Receives everything that was sent before the end, and delivers what is due while its socket lingers."""
        began = self._clock()
        self._adopt()
        for near, far in self._connections:
            with suppress(zmq.Again):
                while True:
                    self._up.take_in(near, far)
        for message in self._up.arrived(math.inf):
            if not message.to.closed and message.due <= began + _linger_seconds(message.to):
                self._sleep(max(0.0, message.due - self._clock()))
                message.deliver()

    def _end(self) -> None:
        with self._ending:
            self._has_ended = True
            _close(*self._connections, *self._handed_over)
            self._ear.close()


def _pipe(*contexts: Context) -> tuple[Socket, Socket]:
    """Two sockets that are connected inside this process, one of each context; sends never block."""
    near, given = (context.socket(zmq.PAIR) for context in contexts)
    for end in (near, given):
        end.set(zmq.SNDHWM, 0)
        end.set(zmq.RCVHWM, 0)
        end.set(zmq.SNDTIMEO, 0)
    endpoint = f"inproc://link-{next(_pipes)}"
    near.bind(endpoint)
    given.connect(endpoint)
    return near, given


def _linger_seconds(of: Socket) -> float:
    milliseconds = int(of.get(zmq.LINGER))
    return math.inf if milliseconds < 0 else milliseconds / 1000


def _close(*connections: Connection) -> None:
    for end in itertools.chain.from_iterable(connections):
        end.close()
