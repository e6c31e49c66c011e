"""The dispatcher's part of a checkpoint: what is loaded goes on as if nothing had come between."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from msgspec.structs import replace

from dispatch.checkpoints.state import (
    STATE,
    DispatcherState,
    load_index,
    load_state,
    read_state,
    save_state,
    write_state,
)
from dispatch.journal.answers import CommandAnswer
from dispatch.placement.capacity.link_costs import MeasuredLinks
from dispatch.placement.errors import DuplicateKeys
from dispatch.placement.rows.index import Index
from dispatch.placement.traffic import WorkerTraffic
from dispatch.progress.accounts import Accounts
from dispatch.progress.status import EventCounts, Status
from dispatch.tally import PhaseSeconds
from infra.base.distinct import number_keys
from infra.base.storage import Storage
from ingest.batches.absent import FieldWatch
from ingest.schema import load_schema
from ps.checkpoints.manifest import ShardPart
from ps.errors import CheckpointDamaged
from tests.dispatch.checkpoints.checkpoints import decided, manifest_of, rows_file, trained


def train(accounts: Accounts, steps: range) -> None:
    """Steps whose scores, traffic and times follow from their numbers."""
    for step in steps:
        random = np.random.default_rng(step)
        labels_B = (random.random(700) < 0.3).astype(np.float32)
        accounts.times.begin(idle=False)
        accounts.quality.add(random.normal(size=700).astype(np.float32), labels_B)
        seconds = PhaseSeconds(0.1 * step, 0, 0, 0, 0, 0)
        accounts.add_round(f"w-{step % 2}", WorkerTraffic(samples=step, pulled_bytes=10), seconds)
        accounts.decisions.add(0.01 * step, is_late=step % 3 == 0, is_shortened=False)
        accounts.set_speeds("w-0", 5.0, step / 7)
        accounts.end_step(700)


def timeless(accounts: Accounts) -> Status:
    """What a run tells about itself, without what its clock says."""
    status = accounts.status("training", 1, 9, EventCounts())
    nothing = {"seconds": 0.0, "step_ms": 0.0, "samples_per_second": 0.0, "idle_seconds": 0.0}
    mark = status.since_mark
    return replace(status, **nothing, since_mark=mark if mark is None else replace(mark, seconds=0.0))


@pytest.mark.parametrize("mark_at", [None, 1400, 14_000])
def test_accounts_go_on_exactly_as_without_a_checkpoint(mark_at: int | None) -> None:
    whole, before = Accounts("r", "esd", mark_at), Accounts("r", "esd", mark_at)
    train(whole, range(1, 61))
    train(before, range(1, 31))
    state = DispatcherState(1, decided(decisions=before.decisions.save()), trained(before))
    train(before, range(31, 40))  # what comes after the checkpoint does not change it
    loaded = load_state(save_state(state))
    after = Accounts("r", "esd", mark_at)
    after.load(loaded.trained.accounts)
    assert loaded.decided.decisions is not None
    after.decisions.load(loaded.decided.decisions)
    train(after, range(31, 61))
    assert msgspec.json.encode(timeless(after)) == msgspec.json.encode(timeless(whole))
    assert after.times.seconds > 0


def test_seconds_of_a_run_leave_out_the_time_that_it_was_away() -> None:
    accounts, again = Accounts("r", "esd"), Accounts("r", "esd")
    train(accounts, range(1, 4))
    again.load(accounts.save())
    assert again.times.seconds == pytest.approx(accounts.times.seconds)
    again.load(Accounts("r", "esd").save())
    assert (again.times.seconds, again.times.samples) == (0.0, 0)


def test_links_go_on_with_what_their_transfers_have_shown() -> None:
    links, again = MeasuredLinks(), MeasuredLinks()
    for transfer in range(20):
        links.of("a").add(1 << 20, 0.01 + transfer / 1000)
        links.of("b").add(1 << 20, 0.1)
        links.uplink_of("b").add(1 << 20, 0.4)
    links.row_costs(["a", "b"])
    again.load(links.save())
    for both in (links, again):
        both.of("b").add(1 << 20, 0.2)
    assert again.save() == links.save()
    assert again.costs(["a", "b"]).push_n.tolist() == links.costs(["a", "b"]).push_n.tolist()
    assert again.row_costs(["a", "b"]).tolist() == links.row_costs(["a", "b"]).tolist() != [1.0, 1.0]


def test_fields_go_on_in_the_middle_of_a_window() -> None:
    schema = load_schema("synthetic")
    present_S = np.arange(len(schema.sources))
    watch, again = FieldWatch(schema, 100), FieldWatch(schema, 100)
    for _ in range(5):
        watch.add(30, present_S)
    state = load_state(save_state(DispatcherState(1, decided(fields=watch.save()), trained())))
    assert state.decided.fields is not None
    again.load(state.decided.fields)
    for both in (watch, again):
        both.add(90, present_S)
    assert (again.shares(), again.absence) == (watch.shares(), watch.absence)
    assert again.absence.fields


def test_a_state_comes_back_from_storage_and_damage_is_named(tmp_path: Path) -> None:
    storage, state = Storage.at(tmp_path), DispatcherState(3, decided(step=7), trained())
    part = write_state(storage, state)
    manifest = manifest_of(3, part, step=7)
    assert save_state(read_state(storage, manifest)) == save_state(state)
    with pytest.raises(CheckpointDamaged, match=f"{part.name} is of checkpoint 3 after step 7; expected"):
        read_state(storage, manifest_of(4, part, step=7))
    with pytest.raises(CheckpointDamaged, match="of a model of 0 rows, and shards saved 2"):
        read_state(storage, manifest_of(3, part, step=7, shards=(ShardPart(0, 2, ()),)))
    path = tmp_path / part.name
    content = path.read_bytes()
    for wrong in (content[:-1], content[:90] + b"!" + content[91:], b""):
        path.write_bytes(wrong)
        with pytest.raises(CheckpointDamaged, match=f"{part.name} is damaged: its size or checksum is wrong"):
            read_state(storage, manifest)
    path.unlink()
    with pytest.raises(CheckpointDamaged, match=f"missing: .*{part.name}"):
        read_state(storage, manifest)


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\xff" * 100, b"\x02\0\0\0\0\0\0\0{}"])
def test_other_files_are_no_state(content: bytes) -> None:
    with pytest.raises(ValueError, match="no state"):
        load_state(content)


# ── the index ─────────────────────────────────────────────────────────────────────────────────────────────────────────
KEYS = np.random.default_rng(0).integers(0, 2**64, 11, np.uint64)


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_the_index_is_rebuilt_from_the_files_of_all_shards(tmp_path: Path, shards: int) -> None:
    storage, parts = Storage.at(tmp_path), []
    for shard in range(shards):
        count = len(range(shard, len(KEYS), shards))
        chain = (list(range(count // 2)), list(range(count // 3, count)))
        files = tuple(rows_file(storage, numbers, KEYS, shard=shard, shards=shards) for numbers in chain)
        parts.append(ShardPart(shard, count, files))
    saved = load_index(storage, manifest_of(1, parts[0].files[0], shards=tuple(parts)))
    assert saved.keys_R.tolist() == KEYS.tolist()
    assert saved.last_steps_R.size == len(KEYS)
    index = Index.restore(saved.keys_R)
    fresh = Index()
    fresh.resolve(number_keys(KEYS))
    more = np.concatenate((KEYS[::-1], np.arange(2000, dtype=np.uint64)))
    assert index.resolve(number_keys(more)).rows_U.tolist() == fresh.resolve(number_keys(more)).rows_U.tolist()
    assert index.keys.tolist() == fresh.keys.tolist()


def test_an_index_with_rows_left_out_or_too_many_is_damage(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    file = rows_file(storage, [0, 1, 3], KEYS)
    with pytest.raises(CheckpointDamaged, match="no key for 1 of its 4 rows, first row 2"):
        load_index(storage, manifest_of(1, file, shards=(ShardPart(0, 4, (file,)),)))
    with pytest.raises(CheckpointDamaged, match="holds row 3 and the checkpoint has 3"):
        load_index(storage, manifest_of(1, file, shards=(ShardPart(0, 3, (file,)),)))
    with pytest.raises(DuplicateKeys, match="3 rows have 2 different keys"):
        Index.restore(np.array([5, 6, 5], np.uint64))


def test_answers_in_checkpoints_of_earlier_releases_are_read_and_written_as_they_were() -> None:
    content = save_state(DispatcherState(1, decided(), trained(Accounts("r", "esd"))))
    header = msgspec.json.decode(content[8 : 8 + int.from_bytes(content[:8], "little")])
    text = header["__metadata__"][STATE].replace('"answers":[]', '"answers":[{"id":"a","text":"paused","version":41}]')
    earlier = safetensors.numpy.save(safetensors.numpy.load(content), {STATE: text})
    loaded = load_state(earlier)
    assert loaded.decided.answers == (CommandAnswer("a", "paused", cursor=41),)
    assert save_state(loaded) == earlier
