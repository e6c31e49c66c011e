"""A stand-in for a server of the model: it says that it serves whatever it hears of."""

import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from dispatch.feed.live_client import LiveClient
from infra.base.storage import Storage
from ps.checkpoints.files import read_columns
from ps.checkpoints.manifest import manifest_numbers, read_manifest
from ps.checkpoints.publication import DeliveredFiles, Deliveries
from ps.errors import PsError

ANSWER_SECONDS = 1.5


class Heard(NamedTuple):
    """A snapshot that was announced."""

    timeline: int
    step: int
    checkpoint: int


class StandIn:
    """Tells a dispatcher that it serves, and reads the newest files of every checkpoint that it hears of."""

    def __init__(
        self, run: str, endpoint: Callable[[], str | None], checkpoints: Path, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        """endpoint: where the dispatcher is now; None while that is not known; answer_seconds: until it asks again."""
        self._answer_seconds = answer_seconds
        self._endpoint, self._client = endpoint, LiveClient("tcp://127.0.0.1:1", run, None, "stand-in")
        self._deliveries = Deliveries()
        self.files = DeliveredFiles(Storage.at(checkpoints), self._deliveries)
        self.delivered = 0
        """files that had arrived when they were read"""
        self.heard: list[Heard] = []
        self.unreadable: list[int] = []
        """checkpoints that could not be read, and are still there"""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _serve(self) -> None:
        served = Heard(0, -1, 0)
        with closing(self._client), closing(self._deliveries):
            while not self._over.is_set():
                if (endpoint := self._endpoint()) is None:
                    self._over.wait(0.05)
                    continue
                self._client.move(endpoint)
                said = self._client.live(
                    served.timeline, served.step, served.checkpoint, time.time(), known=served.checkpoint
                )
                told = self._client.report(said, self._answer_seconds)
                if told is not None and told.checkpoint not in (0, served.checkpoint):
                    served = Heard(told.timeline, told.step, told.checkpoint)
                    self.heard.append(served)
                    self._deliveries.subscribe(told.publishers)
                    self._read(told.checkpoint)

    def _read(self, checkpoint: int) -> None:
        try:
            newest = [shard.files[-1] for shard in read_manifest(self.files, checkpoint).shards]
            self.delivered += self.files.collect(newest)
            for file in newest:
                read_columns(self.files, file)
        except PsError:  # it may have been removed meanwhile
            if checkpoint in manifest_numbers(self.files):
                self.unreadable.append(checkpoint)
