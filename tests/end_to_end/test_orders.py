"""Members that have nothing to do in a step: they hear nothing of it, nobody waits for them, and no bit changes."""

import signal
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from dispatch.journal.history import History, read_history
from dispatch.placement.rows.plan import WorkerPlan
from dispatch.protocol import Order, OrderArrays, Report
from infra.base.process import Stop
from ingest.config import StreamConfig
from ingest.convert import Event
from ingest.main import ProducerJob, run_producer
from ps.config import RowConfig
from ps.phases import FLUSH, TRAIN
from tests.end_to_end.fixed import train_fixed
from tests.end_to_end.interrupting import golden
from tests.end_to_end.processes import start, wait_for_line, wait_until
from tests.end_to_end.threads import WAIT_SECONDS, Plan, model_of, train
from tests.ingest.topics import events, write_json
from tests.ports import free_port
from trainer.worker import Upcoming, Worker

BATCH, STEPS = 32, 16
FIRST, LAST = 3, 14
"""worker 1 trains up to the first of these steps, and from the second on what it trained is trained by worker 0"""
SILENCE_SECONDS = 8
"""longer than a process that runs is silent, however busy the machine"""
EVENTS_PER_SECOND = 300.0
LINKS = "5", "0.01"
"""of a worker that trains alone, and of one that is parked"""
Assign = Callable[[int, int, int], NDArray[np.int32]]
Told = dict[int, list[tuple[Order, OrderArrays]]]
"""orders by worker number"""


def write_groups(folder: Path, group_of: Callable[[int], int]) -> Path:
    """A topic of one partition; all steps of a group have the same keys, none of which another group has."""

    def of_group(event: Event, group: int) -> Event:
        words = {name: f"{group} {value}" for name, value in event.fields.items() if name != "price"}
        tags, idle_seconds = [f"{group} tag", f"{group} other"], 10**group
        return structs.replace(event, fields={**event.fields, **words, "tags": tags, "idle_seconds": idle_seconds})

    given = events(BATCH) * STEPS
    write_json(folder / "log", [of_group(event, group_of(1 + i // BATCH)) for i, event in enumerate(given)], 1)
    return folder


def in_turns(step: int, samples: int) -> NDArray[np.int32]:
    """Both workers, each with the samples that the other had two steps before."""
    return (np.arange(samples, dtype=np.int32) + step // 2) % 2


def first_and_last(step: int, samples: int, _workers: int) -> NDArray[np.int32]:
    """Worker 1 has samples in the first steps alone."""
    return in_turns(step, samples) if step <= FIRST else np.zeros(samples, np.int32)


def every_other(step: int, samples: int, _workers: int) -> NDArray[np.int32]:
    """Worker 1 has samples in every other step."""
    return in_turns(step, samples) if step % 2 else np.zeros(samples, np.int32)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """The orders that reach workers."""
    found: Told = defaultdict(list)
    execute = Worker.execute

    def note(worker: Worker, order: Order, work: OrderArrays, upcoming: Upcoming) -> Any:
        found[worker._number].append((order, work))
        return execute(worker, order, work, upcoming)

    monkeypatch.setattr(Worker, "execute", note)
    return found


def order_everyone(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every member gets an order in every round, with something to do or not."""
    monkeypatch.setattr(WorkerPlan, "is_empty", property(lambda _plan: False))


def fixed(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, assign: Assign, **flushes: Any
) -> tuple[dict[str, bytes], bytes]:
    """Every bit of the model of a run, and its logits."""
    monkeypatch.setattr("tests.end_to_end.fixed.fixed_assignment", assign)
    result, logits = train_fixed(monkeypatch, plan, **flushes)
    return model_of(result), logits


def plans(tmp_path: Path, group_of: Callable[[int], int], **more: Any) -> tuple[Plan, Plan]:
    """Two runs of the same events."""
    named: dict[str, Any] = {"batch": BATCH, "rows": RowConfig(dim=5), "reduce": "hub", "policy": "random", **more}
    one, other = (Plan(write_groups(tmp_path / name, group_of), 2, **named) for name in ("one", "other"))
    return one, other


def test_a_member_without_work_hears_of_no_step_until_its_rows_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    plan, other = plans(tmp_path, lambda step: int(FIRST < step < LAST))
    model, logits = fixed(monkeypatch, plan, first_and_last)
    assert [order.step for order, _ in told[0]] == [*range(1, STEPS + 1), STEPS]
    steps = [order.step for order, _ in told[1] if order.phase == TRAIN]
    assert steps[:FIRST] == list(range(1, FIRST + 1))
    assert steps[FIRST] == LAST
    order, work = told[1][FIRST]
    assert (order.samples, order.early.owned) == (0, work.owned_rows.size)
    assert work.owned_rows.size > 0, "what it trained long ago"
    replayed = train(golden(plan))
    assert model_of(replayed) == model
    order_everyone(monkeypatch)
    told.clear()
    assert fixed(monkeypatch, other, first_and_last) == (model, logits)
    assert len(told[1]) == STEPS + 1


def test_a_member_that_has_nothing_to_write_back_hears_of_no_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    plan, other = plans(tmp_path, lambda step: int(FIRST < step < LAST))
    behind = (FIRST, FIRST + 2, LAST - 1)
    model, logits = fixed(monkeypatch, plan, first_and_last, flush_behind=behind)
    flushed = {number: [order.step for order, _ in told[number] if order.phase >= FLUSH] for number in (0, 1)}
    assert flushed == {0: [*behind, STEPS], 1: [FIRST]}
    order_everyone(monkeypatch)
    assert fixed(monkeypatch, other, first_and_last, flush_behind=behind) == (model, logits)


def test_early_transfers_of_a_later_step_wait_for_the_one_that_trains_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, other = plans(tmp_path, lambda step: step % 2, lookahead=3)
    execute, skipped = Worker.execute, list[int]()

    def waiting(worker: Worker, order: Order, work: OrderArrays, upcoming: Upcoming) -> Any:
        def patiently() -> tuple[Order, OrderArrays] | None:
            deadline = time.monotonic() + WAIT_SECONDS
            while (following := upcoming()) is None and order.step + 2 <= STEPS:
                assert time.monotonic() < deadline, f"there is no order after that of step {order.step}"
                time.sleep(0.001)
            if following is not None and following[0].step == order.step + 2 and following[0].early.owned:
                skipped.append(order.step)
            return following

        return execute(worker, order, work, patiently)

    with monkeypatch.context() as patched:
        patched.setattr(Worker, "execute", waiting)
        found = fixed(monkeypatch, plan, every_other)
    assert {*skipped} == set(range(1, STEPS - 2, 2)), "orders that say early of rows that are being trained"
    order_everyone(monkeypatch)
    assert fixed(monkeypatch, other, every_other) == found


def test_traffic_and_reports_are_those_of_members_with_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    plan, _ = plans(tmp_path, lambda step: int(FIRST < step < LAST))
    reports = list[Report]()
    execute = Worker.execute

    def note(worker: Worker, *arguments: Any) -> Any:
        report, arrays = execute(worker, *arguments)
        reports.append(report)
        return report, arrays

    monkeypatch.setattr(Worker, "execute", note)
    monkeypatch.setattr("tests.end_to_end.fixed.fixed_assignment", first_and_last)
    status = train_fixed(monkeypatch, plan)[0].status
    assert len(reports) == len(told[0]) + len(told[1])
    pushed = [sum(report.pushed_bytes for report in reports if report.worker == number) for number in (0, 1)]
    assert [worker.traffic.pushed_bytes for worker in status.workers] == pushed
    assert [worker.traffic.samples for worker in status.workers] == [
        STEPS * BATCH - FIRST * BATCH // 2,
        FIRST * BATCH // 2,
    ]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_parked_worker_that_ends_or_stops_is_lost_while_the_others_train(tmp_path: Path, how: signal.Signals) -> None:
    folder, endpoint, over = tmp_path / "run", f"tcp://127.0.0.1:{free_port()}", Stop()
    sizes = f"stream.batch={BATCH}", "dispatch.workers=2", "ps.shards=1", "rows.dim=4"
    policy = "dispatch.policy=joint:elastic", "dispatch.choose=model"
    limits = f"dispatch.silence_seconds={SILENCE_SECONDS}", "dispatch.replace_seconds=1", "trainer.shape_link=false"
    where = f"folder={folder}", f"stream.folder={tmp_path / 'log'}"
    given = [part for setting in (*sizes, *policy, *limits, *where) for part in ("--set", setting)]
    clicks = ProducerJob(StreamConfig(folder=tmp_path / "log"), rate=EVENTS_PER_SECOND)
    producing = Thread(target=run_producer, args=(clicks, over))

    def history() -> History:
        return read_history(folder / "journal")

    producing.start()
    dispatcher = start("dispatcher", "--endpoint", endpoint, *given)
    shard = start("ps", "--shard", "0", "--endpoint", "tcp://127.0.0.1:*", "--dispatcher", endpoint, *given)
    joining = "worker", "--dispatcher", endpoint, *given
    sole, parked = (start(*joining, "--name", f"worker-{n}", "--link", link) for n, link in enumerate(LINKS))
    try:
        wait_until(lambda: [step.sole for step in history().steps[-9:]] == [0] * 9, dispatcher)
        parked.send_signal(how)
        wait_for_line(dispatcher, "lost worker worker-1: it ended, or gave no sign")
        before = history().step
        wait_until(lambda: history().members == ("worker-0",) and history().step > before, dispatcher, 0.2)
        dispatcher.terminate()
        output, _ = dispatcher.communicate(timeout=300)
        assert dispatcher.returncode == 0, output
    finally:
        over.request("test is over")
        producing.join()
        for process in (dispatcher, shard, sole, parked):
            process.kill()
            process.communicate()
