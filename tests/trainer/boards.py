"""Boards inside one process, for ranks that are threads of it."""

import queue
from datetime import timedelta

from trainer.reduce import Rendezvous

TIMEOUT = timedelta(seconds=20)


class ThreadBoard:
    """The board of one rank: a queue that the others put their posts in."""

    def __init__(self) -> None:
        self.others: list[ThreadBoard] = []
        self._posts: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()

    def post(self, key: str, value: bytes) -> None:
        for other in self.others:
            other._posts.put((key, value))

    def next_post(self, timeout_seconds: float) -> tuple[str, bytes] | None:
        try:
            return self._posts.get(timeout=timeout_seconds)
        except queue.Empty:
            return None


def meetings(size: int, timeout: timedelta = TIMEOUT) -> list[Rendezvous]:
    """How each of so many ranks meets the others."""
    boards = [ThreadBoard() for _ in range(size)]
    for board in boards:
        board.others = [other for other in boards if other is not board]
    return [Rendezvous(board, "127.0.0.1", timeout) for board in boards]


def names(size: int) -> tuple[str, ...]:
    return tuple(f"worker-{number}" for number in range(size))
