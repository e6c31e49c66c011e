"""A process of a run that crashes anywhere costs time: the run goes on, and equals a replay of its journal."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from dispatch import recovery
from dispatch.checkpoints.unreadable import MOST_TRIES
from dispatch.config import MemoryConfig
from dispatch.errors import NoCheckpoint
from dispatch.journal.log import read_records
from dispatch.journal.records import GenerationStarted, Redecided
from infra.base import faults
from infra.base.errors import StorageError
from infra.base.faults import SEAMS
from infra.base.storage import Storage
from ps.checkpoints.manifest import manifest_numbers, read_manifest
from ps.checkpoints.restore import restore
from ps.config import CheckpointConfig, RowConfig
from ps.protocol import EMPTY_MODEL
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.crashing import Strike, check_run, company, name_of, patient_for, train_struck
from tests.end_to_end.threads import NO_CHECKPOINTS, Plan
from tests.end_to_end.withheld import paused

STEPS, BATCH = 24, 32
EVENTS = STEPS * BATCH
OFTEN = CheckpointConfig(seconds=0.02, kept=1000)
SIZES: dict[str, Any] = {"batch": BATCH, "rows": RowConfig(dim=4, chunks=2, half_life_steps=5), "cache_rows": 600}
MEMORY = MemoryConfig(expire_steps=3, prune_share=0.5, prune_steps=3, prune_enforce=0.0, columns=0.5)
SMALL: dict[str, Any] = {**SIZES, "silence_seconds": 20.0, "memory": MEMORY}
"""in which keys are forgotten in almost every step, chunks pruned in every third, and columns dropped after three"""
WHOLE_ROWS: dict[str, Any] = {"rows": RowConfig(dim=4), "memory": MemoryConfig(expire_steps=3)}
LATER = 3
"""steps between two crashes"""


@pytest.mark.one_by_one(a_day=2)
@pytest.mark.parametrize("seam", SEAMS)
def test_a_crash_at_any_seam_costs_time_and_no_bit(write_topic: WriteTopic, seam: str) -> None:
    plan = Plan(write_topic(EVENTS, poison=0.05), **SMALL, checkpoints=OFTEN)
    result = train_struck(plan, Strike(seam, step=0 if seam == "start" else 6))
    check_run(plan, result, EVENTS)


@pytest.mark.parametrize(
    ("process", "how"),
    [
        ("worker", {"policy": "esd:1"}),
        ("ps", {"policy": "joint:2:elastic", "workers": 3}),
        ("dispatcher", {"policy": "esd:0.5"}),
    ],
)
def test_crashes_at_every_seam_of_a_process_cost_time_and_no_bit(
    write_topic: WriteTopic, process: str, how: dict[str, Any]
) -> None:
    seams = [name for name, seam in SEAMS.items() if seam.process == process]
    events = (len(seams) + 2) * LATER * BATCH
    plan = Plan(write_topic(events, poison=0.05), **SMALL, **how, checkpoints=OFTEN)
    strikes = [Strike(seam, step=LATER * number) for number, seam in enumerate(seams)]
    history = check_run(plan, train_struck(plan, *strikes), events)
    assert history.newest is not None
    assert history.newest.number >= len(seams)


@pytest.mark.parametrize("how", [{"reduce": "ring"}, {"policy": "fae:0.15:4", "cache_rows": 900, **WHOLE_ROWS}])
def test_workers_that_sum_gradients_in_a_ring_recover(write_topic: WriteTopic, how: dict[str, Any]) -> None:
    plan = Plan(write_topic(EVENTS, poison=0.05), **{**SMALL, **how}, checkpoints=OFTEN)
    strikes = Strike("backward", 4), Strike("pull", 9), Strike("journalled", 14)
    check_run(plan, train_struck(plan, *strikes), EVENTS)


# ── a second crash before the first is mended ─────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("seam", ["forward", "push_half_applied", "announced_one_shard"])
def test_a_crash_while_steps_are_trained_again_begins_that_anew(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch, seam: str
) -> None:
    plan, repeated, train_again = Plan(write_topic(EVENTS), **SMALL), list[int](), recovery.train_again

    def note(coordinator: Any, decider: Any, recorded: Any) -> None:
        repeated.append(recorded.step)
        train_again(coordinator, decider, recorded)

    monkeypatch.setattr(recovery, "train_again", note)
    second = Strike(seam, when=lambda: 3 in repeated)
    result = train_struck(plan, Strike("after_pull", 8), second)
    assert repeated.count(1) == 2
    check_run(plan, result, EVENTS)


def test_a_shard_that_crashes_while_it_goes_back_to_a_checkpoint_is_replaced(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(write_topic(EVENTS), **SMALL, checkpoints=OFTEN)

    def crash(number: int, **others: Any) -> Any:
        if number != EMPTY_MODEL:
            faults.reach("going back")
        return restore(number=number, **others)

    monkeypatch.setattr("ps.shard.restore", crash)
    strikes = Strike("order_received", 12), Strike("going back")
    check_run(plan, train_struck(plan, *strikes), EVENTS)
    assert strikes[1].victim.startswith("ps-")


# ── damaged checkpoints
# ──────────────────────────────────────────────────────────────────────────────────────────────────────
def damage(folder: Path, number: int) -> None:
    """Changes a bit in a file that this checkpoint has and no earlier one."""
    manifest = read_manifest(Storage.at(folder / "checkpoints"), number)
    path = folder / "checkpoints" / manifest.shards[-1].files[-1].name
    written = bytearray(path.read_bytes())
    written[-1] ^= 1
    path.write_bytes(written)


def bases(plan: Plan) -> list[int | None]:
    """The checkpoints that generations went back to."""
    records = read_records(plan.folder / "journal")
    return [record.base for record in records if isinstance(record, GenerationStarted)]


@pytest.mark.parametrize("crash", ["journalled", "pull"])
def test_a_damaged_checkpoint_is_passed_over_and_more_is_trained_again(write_topic: WriteTopic, crash: str) -> None:
    plan, damaged = Plan(write_topic(EVENTS), **SMALL, checkpoints=OFTEN), list[int]()

    def damage_newest() -> bool:
        numbers = manifest_numbers(Storage.at(plan.folder / "checkpoints"))
        if len(numbers) > 1 and not damaged:
            damage(plan.folder, numbers[-1])
            damaged.append(numbers[-1])
        return bool(damaged)

    result = train_struck(plan, Strike(crash, 12, when=damage_newest))
    (gone,) = damaged
    _, *went_back = (base for base in bases(plan) if base is not None)
    # A checkpoint that was under way when the newest was damaged may have been taken since, and rests on the damaged
    # file.
    unusable = [base for base in went_back if base >= gone]
    assert unusable
    assert went_back[: len(unusable)] == sorted(unusable, reverse=True)
    assert went_back[len(unusable)] < gone
    check_run(plan, result, EVENTS)


class HiddenFile:
    """The newest file of the newest checkpoint, once there are two, which cannot be read so many times; what it holds
    is whole."""

    def __init__(self, plan: Plan, monkeypatch: pytest.MonkeyPatch, by: str, times: int) -> None:
        """by: names of the threads that cannot read it begin so"""
        self._storage, self._by, self.times = Storage.at(plan.folder / "checkpoints"), by, times
        self.checkpoint, self._name = 0, ""
        for way in ("open", "read"):
            monkeypatch.setattr(Storage, way, self._refusing(getattr(Storage, way)))

    def _refusing(self, reading: Callable[[Storage, str], Any]) -> Callable[[Storage, str], Any]:
        def read(storage: Storage, name: str) -> Any:
            if name == self._name and self.times and name_of(threading.current_thread()).startswith(self._by):
                self.times -= 1
                raise StorageError(f"cannot use {storage.where(name)}: Input/output error")
            return reading(storage, name)

        return read

    def hide(self) -> bool:
        numbers = manifest_numbers(self._storage)
        if len(numbers) > 1 and not self.checkpoint:
            self.checkpoint = numbers[-1]
            self._name = read_manifest(self._storage, self.checkpoint).shards[-1].files[-1].name
        return bool(self.checkpoint)


@pytest.mark.parametrize("by", ["dispatcher", "ps-"])
@pytest.mark.parametrize("times", [MOST_TRIES - 2, 1000])
def test_a_checkpoint_that_cannot_be_read_is_tried_again_and_then_the_one_before(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch, by: str, times: int
) -> None:
    monkeypatch.setattr("dispatch.recovery.PAUSE_SECONDS", 0.01)
    plan = Plan(write_topic(EVENTS), **SMALL, checkpoints=OFTEN)
    hidden = HiddenFile(plan, monkeypatch, by, times)
    with capture_logs() as logs:
        result = train_struck(plan, Strike("pull", 12, when=hidden.hide))
    last = [base for base in bases(plan) if base is not None][-1]
    assert (last >= hidden.checkpoint) is (times < MOST_TRIES)
    assert hidden.times < times
    told = [line for line in logs if line["event"] == "a checkpoint is skipped for a while; trying the one before"]
    assert bool(told) is (times > MOST_TRIES)
    assert all("Input/output error" in line["reason"] and ".safetensors" in line["reason"] for line in told)
    assert not [line for line in logs if "a checkpoint cannot be used" in line["event"]]  # it is not damaged
    hidden.times = 0
    check_run(plan, result, EVENTS)


def damage_all(plan: Plan) -> None:
    for number in manifest_numbers(Storage.at(plan.folder / "checkpoints")):
        damage(plan.folder, number)


def test_without_a_checkpoint_that_can_be_used_the_run_begins_with_the_empty_model(write_topic: WriteTopic) -> None:
    plan = Plan(write_topic(EVENTS), **SMALL, checkpoints=OFTEN)
    result = train_struck(plan, Strike("ordered", 12), on_crash=lambda: damage_all(plan))
    assert EMPTY_MODEL in bases(plan)[1:]
    check_run(plan, result, EVENTS)


def is_trimmed(plan: Plan) -> bool:
    """Whether the journal has lost its first steps."""
    files = {path.name for path in (plan.folder / "journal").glob("*.log")}
    return bool(files) and f"{0:020d}.log" not in files


def train_and_damage_all(plan: Plan) -> None:
    with company(plan, Strike("ordered", 16), trims=True) as there:
        there.on_crash = lambda: damage_all(plan)
        there.dispatch()


def test_without_a_checkpoint_and_the_first_steps_on_record_the_run_cannot_go_on(write_topic: WriteTopic) -> None:
    plan = Plan(write_topic(EVENTS), **SMALL, checkpoints=CheckpointConfig(seconds=0.02, kept=1))
    plan = paused(plan, 12, lambda: is_trimmed(plan))
    with pytest.raises(
        NoCheckpoint, match="no checkpoint can be used, and the journal does not reach back to the run's start"
    ):
        train_and_damage_all(plan)


# ── no replacement ────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("steps", [(6,), (6, 14)])
def test_without_a_replacement_steps_are_decided_anew_for_fewer_workers(
    write_topic: WriteTopic, steps: tuple[int, ...]
) -> None:
    plan = Plan(write_topic(EVENTS, poison=0.05), workers=3, **SMALL, checkpoints=NO_CHECKPOINTS, replace_seconds=0.2)
    strikes = [Strike("after_pull", step, is_replaced=False) for step in steps]
    with patient_for(lambda: plan.workers - sum(bool(strike.victim) for strike in strikes)):
        result = train_struck(plan, *strikes)
    records = list(read_records(plan.folder / "journal"))
    assert sum(isinstance(record, Redecided) for record in records) == len(steps)
    history = check_run(plan, result, EVENTS)
    assert {len(past.record.members) for past in history.generations} == {3 - len(steps)}
