"""How a run's processes end: in a fixed order, and with nothing native left to the garbage collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from dispatch.dense import Reduce
from dispatch.peers.dismissal import dismiss_all
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.threads import Plan, train

NATIVE = ("torch", "zmq", "numba", "llvmlite", "safetensors", "ctypes")


@contextmanager
def collected_garbage() -> Iterator[list[Any]]:
    """Every object that only the garbage collector could free, in the list once the block is left."""
    garbage: list[Any] = []
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield garbage
        gc.collect()
        garbage += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.parametrize("reduce", ["hub", "ring"])
def test_a_run_leaves_nothing_native_to_the_garbage_collector(write_topic: WriteTopic, reduce: Reduce) -> None:
    # the first compiles kernels, whose compiler leaves cycles behind
    train(Plan(write_topic(256, "first"), workers=3, reduce=reduce))
    with collected_garbage() as garbage:
        train(Plan(write_topic(256, "second"), workers=3, reduce=reduce))
    modules = {type(each).__module__ for each in garbage}
    assert [module for module in modules if module.split(".")[0] in NATIVE] == []


def test_a_cycle_is_found_in_the_garbage() -> None:
    with collected_garbage() as garbage:
        cycle: list[Any] = []
        cycle.append(cycle)
        del cycle
    assert any(isinstance(each, list) and each and each[0] is each for each in garbage)


def test_weights_not_saved_in_time_are_logged_and_the_others_go_all_the_same(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("trainer.main.save_dense", fail)
    monkeypatch.setattr("dispatch.coordinator.dismiss_all", lambda crew, step, _: dismiss_all(crew, step, 0.5))
    with capture_logs() as logs, pytest.raises(OSError, match="the disk is full"):
        train(Plan(write_topic(256), workers=2))
    (error,) = [line for line in logs if line["log_level"] == "error"]
    assert (error["worker"], "not saved" in error["event"]) == ("worker-0", True)
    assert [line["worker"] for line in logs if line["event"] == "left"] == ["worker-1"]
