"""Hostile clients, in separate processes: silent, slow, too large, too many.

    idle    connections that send nothing
    slow    bodies that arrive at a byte per second, from two tokens
    large   bodies of 1 GB, with a length and in chunks, in turn
    flood   requests from one token for a path that does not exist, as fast as the API answers them

Each starts again when it is refused or disconnected, until the time is over.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

GIGABYTE = 1 << 30
PIECE = b"x" * (1 << 16)
CHUNK = b"%x\r\n%b\r\n" % (len(PIECE), PIECE)
SLOW_SECONDS = 1.0
"""Time between two bytes of a slow body."""
AGAIN_SECONDS = 0.5
FLOOD_CLIENTS = 32
ANSWER_BYTES = 4096


@dataclass(frozen=True)
class Attack:
    """The number of attackers of each kind."""

    address: str
    tokens: Sequence[str]
    """Two tokens for slow bodies, one for large ones, one for the flood."""
    idle: int
    slow: int
    flood_per_second: float
    """Most requests of the flood per second."""
    seconds: float


@dataclass
class AttackTally:
    """The results of the attack."""

    idle_opened: int = 0
    statuses: dict[str, Counter[int]] = field(
        default_factory=lambda: {name: Counter() for name in ("slow", "large", "flood")}
    )
    """Counts of each status code by kind; 0: no answer."""
    large_bytes: int = 0
    """Most bytes that were accepted of one large body."""


def attack(what: Attack) -> AttackTally:
    """Runs all attacks except the flood at the same time, for as long as requested."""

    def work(attackers: _Attackers) -> list[Coroutine[Any, Any, None]]:
        slow = [attackers.slow(what.tokens[number % 2]) for number in range(what.slow)]
        return [attackers.large(what.tokens[2]), *slow, *(attackers.idle() for _ in range(what.idle))]

    return asyncio.run(_together(what, work))


def flood(what: Attack) -> AttackTally:
    """Runs the flood; in a separate process, because it has to be fast."""
    return asyncio.run(_together(what, lambda attackers: [attackers.flood() for _ in range(FLOOD_CLIENTS)]))


async def _together(what: Attack, work: "Callable[[_Attackers], Iterable[Coroutine[Any, Any, None]]]") -> AttackTally:
    tally = AttackTally()
    place = urlsplit(what.address)
    attackers = _Attackers(str(place.hostname), int(place.port or 0), what, tally)
    tasks = [asyncio.create_task(each) for each in work(attackers)]
    await asyncio.sleep(what.seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return tally


class _Attackers:
    """What each attacker does repeatedly."""

    def __init__(self, host: str, port: int, what: Attack, tally: AttackTally) -> None:
        self._host = host
        self._port = port
        self._what = what
        self._tally = tally

    async def idle(self) -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                self._tally.idle_opened += 1
                try:
                    await reader.read(1)
                finally:
                    writer.close()
            await asyncio.sleep(AGAIN_SECONDS)

    async def slow(self, token: str) -> None:
        while True:
            self._tally.statuses["slow"][await self._send_slowly(token)] += 1
            await asyncio.sleep(AGAIN_SECONDS)

    async def large(self, token: str) -> None:
        length = b"Content-Length: %d\r\n" % GIGABYTE
        chunks = b"Transfer-Encoding: chunked\r\n"
        while True:
            for framing, piece in ((length, PIECE), (chunks, CHUNK)):
                self._tally.statuses["large"][await self._send_much(token, framing, piece)] += 1
                await asyncio.sleep(AGAIN_SECONDS)

    async def flood(self) -> None:
        pause = FLOOD_CLIENTS / self._what.flood_per_second
        request = _head("GET", self._what.tokens[3], b"")
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                try:
                    while True:
                        due = time.monotonic() + pause
                        writer.write(request)
                        self._tally.statuses["flood"][await _answered(reader)] += 1
                        await asyncio.sleep(max(0.0, due - time.monotonic()))
                finally:
                    writer.close()
            await asyncio.sleep(AGAIN_SECONDS)

    async def _send_slowly(self, token: str) -> int:
        """Returns the status code; 0 if there was no answer."""
        status = 0
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(self._host, self._port)
            answer = asyncio.create_task(_first_status(reader))
            writer.write(_head("POST", token, b"Content-Length: 1000\r\n"))
            while not answer.done():
                writer.write(b"x")
                await asyncio.wait([answer], timeout=SLOW_SECONDS)
            writer.close()
            status = await answer
        return status

    async def _send_much(self, token: str, framing: bytes, piece: bytes) -> int:
        """Sends all of it, whatever the answer is; returns the status code, or 0 if there was none."""
        status = sent = 0
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(self._host, self._port)
            answer = asyncio.create_task(_first_status(reader))
            with suppress(OSError):
                writer.write(_head("POST", token, framing))
                while sent < GIGABYTE:
                    writer.write(piece)
                    await writer.drain()
                    sent += len(PIECE)
            writer.close()
            status = await answer
        self._tally.large_bytes = max(self._tally.large_bytes, sent)
        return status


async def _first_status(reader: asyncio.StreamReader) -> int:
    """Status code of the first answer; 0 if the connection ends without one."""
    with suppress(OSError):
        return _status(await reader.read(ANSWER_BYTES))
    return 0


def _head(method: str, token: str, framing: bytes) -> bytes:
    path = "/v1/samples" if method == "POST" else "/v1/nothing"
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n".encode() + framing + b"\r\n"


async def _answered(reader: asyncio.StreamReader) -> int:
    """Status code of an answer that is read to its end."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    _, _, rest = head.partition(b"content-length:")
    await reader.readexactly(int(rest.partition(b"\r\n")[0] or 0))
    return _status(head)


def _status(answer: bytes) -> int:
    words = answer[:20].split()
    return int(words[1]) if len(words) > 1 else 0
