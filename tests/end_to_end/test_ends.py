"""How a run's processes end: in a fixed order, and with nothing native left to the garbage collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from dispatch.dense import Reduce
from dispatch.journal.history import read_history
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.threads import Plan, train
from trainer.config import DENSE_FILE
from trainer.dense import save_dense

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


def test_another_worker_saves_the_weights_if_the_first_one_cannot(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = list[object]()

    def fail_once(*what: Any) -> None:
        if not failures:
            failures.append(what)
            raise OSError("the disk is full")
        save_dense(*what)

    monkeypatch.setattr("trainer.main.save_dense", fail_once)
    with capture_logs() as logs, pytest.raises(OSError, match="the disk is full"):
        train(plan := Plan(write_topic(256), workers=2, replace_seconds=0.2))
    faults = [line["fault"] for line in logs if line["event"] == "the run goes back to its last checkpoint"]
    assert len(faults) == 1
    assert faults[0].startswith("lost worker worker-0")
    assert [line["worker"] for line in logs if line["event"] == "left"] == ["worker-1"]
    assert (plan.folder / DENSE_FILE).exists()
    assert read_history(plan.folder / "journal").ended is not None
