"""Servers that are measured from outside, each in a separate process."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from infra.base.process import end_with_parent, stop_on_signals


@contextmanager
def own_process(serve: Callable[..., None], *arguments: Any) -> Iterator[str]:
    """Runs ``serve(*arguments, stop, ready)``; yields what it sends to ``ready``: where it listens."""
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload([serve.__module__])  # loads libraries once for all servers
    here, there = forking.Pipe()
    process = forking.Process(target=_child, args=(serve, arguments, there))
    process.start()
    there.close()
    try:
        yield here.recv()
    finally:
        process.terminate()
        process.join()


def _child(serve: Callable[..., None], arguments: tuple[Any, ...], ready: Connection) -> None:
    stop = stop_on_signals()
    end_with_parent()
    serve(*arguments, stop, ready)
