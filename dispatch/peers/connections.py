"""The dispatcher's connections to the shards of a generation: made when one starts, dropped when a process is lost."""

from collections.abc import Callable

import numpy as np
import zmq
from numpy.typing import NDArray

from dispatch.errors import CheckpointUnreadable, CheckpointUnusable, ShardRefused
from dispatch.job import DispatchJob
from dispatch.peers.providers import Providers
from dispatch.peers.shards import Shards
from infra.base.errors import StorageError
from ps.errors import CheckpointDamaged
from ps.protocol import EMPTY_MODEL

SHARD_SECONDS = 60.0
"""Time that a shard may take to answer; going back to a checkpoint takes longest."""


class ShardConnections:
    """Connects to whichever shards have offered themselves."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", job: DispatchJob, providers: Providers) -> None:
        self._context = context
        self._job = job
        self._providers = providers
        self._shards: Shards | None = None

    @property
    def are_open(self) -> bool:
        return self._shards is not None

    @property
    def shards(self) -> Shards:
        assert self._shards is not None, "no generation has started"
        return self._shards

    @property
    def publishers(self) -> tuple[str, ...]:
        """Where the shards in use publish the files of checkpoints; those that publish none are omitted."""
        return tuple(provider.publisher for provider in self._providers.in_use if provider.publisher)

    def open(
        self, generation: int, step: int, workers: int, restore: int, rows: int, while_waiting: Callable[[], None]
    ) -> NDArray[np.uint8]:
        """Starts a generation on every shard, with the model of a checkpoint; returns the masks of its rows, if rows
        can be pruned.

        rows: the number that all shards together must hold then; while_waiting: called now and then while waiting for
        an answer, may raise. Raises CheckpointUnusable if that checkpoint is damaged, CheckpointUnreadable if a shard
        cannot read it.
        """
        if self._shards is None:
            self._shards = Shards(
                context=self._context,
                endpoints=self._providers.use(),
                run=self._job.run,
                curve=self._job.curve,
                timeout_seconds=SHARD_SECONDS,
                settings=self._job.agreement.shards,
                while_waiting=while_waiting,
            )
        try:
            opened = self._shards.open(generation, step, workers, restore)
        except ShardRefused as error:
            if restore > EMPTY_MODEL and error.error == StorageError.__name__:
                raise CheckpointUnreadable(f"checkpoint {restore} cannot be read: {error}", restore) from error
            if restore > EMPTY_MODEL and error.error == CheckpointDamaged.__name__:
                raise CheckpointUnusable(f"checkpoint {restore} cannot be used: {error}") from error
            raise
        if (found := sum(opened.rows)) != rows:
            raise ShardRefused(
                f"the shards hold {found} rows, and the dispatcher knows {rows}; expected as many; restore the run's "
                "folder from a copy"
            )
        return opened.masks_R

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Endpoints of the shards in use, by number."""
        return tuple(provider.endpoint for provider in self._providers.in_use)

    def close(self) -> None:
        shards, self._shards = self._shards, None
        self._providers.in_use = ()
        if shards is not None:
            shards.close()
