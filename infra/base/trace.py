"""Spans: what a process did and when, on a clock that all processes of a machine share.

A process that was told to keeps the newest of them and writes them to a file when it ends, in the format of Chrome's
trace events, which Perfetto and chrome://tracing open. Until then, and in all other processes, a span costs next to
nothing.
"""

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec

P = ParamSpec("P")
T = TypeVar("T")
FOLDER = "trace"
"""Below the folder of a run."""
_NOTHING = nullcontext()


class Span(NamedTuple):
    """Work of one thread, by the machine's monotonic clock, in seconds."""

    name: str
    began: float
    ended: float
    thread: str
    step: int = -1
    """The step that it belongs to; -1: not known."""
    busy: float = 0.0
    """Processor time of the thread in it, in seconds; 0 if that was not measured."""


class _Kept:
    """The spans of this process; None: it keeps none."""

    def __init__(self) -> None:
        self.spans: deque[Span] | None = None


_KEPT = _Kept()


def keep_spans(file: Path, most: int) -> None:
    """Keeps the newest spans from now on, and writes them to this file when the process ends. most: 0 keeps none."""
    if most:
        _KEPT.spans = deque(maxlen=most)
        atexit.register(_write, file, file.stem)


def is_traced() -> bool:
    """Whether this process keeps spans."""
    return _KEPT.spans is not None


def note(name: str, began: float, ended: float, step: int = -1, busy: float = 0.0) -> None:
    """Keeps a span of this thread, by ``time.monotonic``; busy: processor time of the thread in it, if known."""
    if _KEPT.spans is not None:
        _KEPT.spans.append(Span(name, began, ended, threading.current_thread().name, step, busy))


def span(name: str, step: int = -1) -> AbstractContextManager[None]:
    """Inside, this thread does what the name says."""
    return _NOTHING if _KEPT.spans is None else _timed(name, step)


@contextmanager
def _timed(name: str, step: int) -> Iterator[None]:
    began = time.monotonic()
    busy = time.thread_time()
    try:
        yield
    finally:
        note(name, began, time.monotonic(), step, time.thread_time() - busy)


def traced(function: Callable[P, T]) -> Callable[P, T]:
    """Keeps a span of the function's name for each call."""
    name = function.__name__.strip("_").replace("_", " ")

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with span(name):
            return function(*args, **kwargs)

    return call


def _write(file: Path, process: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.encode({"traceEvents": trace_events(process, os.getpid(), list(_KEPT.spans or ()))}))


def trace_events(process: str, number: int, spans: list[Span]) -> list[dict[str, Any]]:
    """The events of one process; number: of the process, in the picture."""
    threads = {thread: place for place, thread in enumerate(dict.fromkeys(each.thread for each in spans))}
    names = [("process_name", process, 0)] + [("thread_name", thread, place) for thread, place in threads.items()]
    told: list[dict[str, Any]] = [
        {"ph": "M", "name": kind, "pid": number, "tid": place, "args": {"name": name}} for kind, name, place in names
    ]
    return told + [
        {
            "ph": "X",
            "name": each.name,
            "pid": number,
            "tid": threads[each.thread],
            "ts": each.began * 1e6,
            "dur": (each.ended - each.began) * 1e6,
            "tdur": each.busy * 1e6,
            "args": {"step": each.step},
        }
        for each in spans
    ]
