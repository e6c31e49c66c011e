"""A short run of real commands, and damage to every file of it, read again as the product reads it.

Whatever happens to one file, a reader gets exactly what was there, or an error of ours that names the file; of the
journal, which ends with a torn tail after a crash, it may also get a part from the beginning if the file was
checkpoint, and without its oldest file, which a run drops when no checkpoint needs it any more, what follows it.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file, save_file

from dispatch.checkpoints.survey import verify_checkpoints
from dispatch.journal.history import read_checkpoints, read_manifests
from dispatch.journal.log import JournalWriter
from infra.base.errors import FreshetError
from infra.base.storage import Storage
from infra.run.folder import check_free
from infra.run.settings import Settings, read_stored
from infra.run.supervision.child import last_lines
from ingest.batches.replay import form_batch
from ingest.letters.embedded import DeadLetterLog, read_dead_letters
from ingest.log.embedded import LogReader, LogWriter
from ingest.log.frames import frame_bytes
from ingest.log.segments import SEGMENT
from ps.checkpoints.manifest import manifest_name, manifest_numbers
from ps.errors import CheckpointDamaged
from tests.end_to_end.processes import run, start
from trainer.dense import Dense, load_dense
from trainer.models.registry import build_model

SEED = 20261115
CASES = 2
"""random cases of each kind and file in one round"""
SETTINGS = (
    *("stream.batch=32", "stream.segment_bytes=8192", "dispatch.workers=1", "ps.shards=1", "api.port=0"),
    "checkpoints.seconds=0.01",
)
Look = Callable[[Path], Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short real run over encrypted links that has rejected some events."""
    base = tmp_path_factory.mktemp("finished")
    folder, keys = base / "run", base / "keys"
    where = (f"stream.folder={folder}/log", f"curve_folder={keys}")
    chosen = [part for one in (*SETTINGS, *where) for part in ("--set", one)]
    commands: tuple[tuple[str | Path, ...], ...] = (
        ("keys", keys, "--worker", "worker-0"),
        ("produce", "--limit", "200", "--poison", "0.1", *chosen),
        ("up", "--samples", "160", "--run", folder, "--json", folder / "summary.json", *chosen),
    )
    for command in commands:
        ended = run(*command)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


def test_produce_then_up_trains_what_was_produced_over_encrypted_links_and_shows_what_was_not(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert (summary["status"]["samples"], summary["exit_reason"]) == (160, "finished")
    letters = run("dead-letters", "--run", finished).stdout.splitlines()
    assert len(letters) == summary["status"]["events"]["dead_letters"] > 10
    assert {"partition", "offset", "index", "reason", "payload"} <= json.loads(letters[0]).keys()


def test_a_run_that_is_over_is_not_begun_again(finished: Path) -> None:
    over = run("up", "--run", finished)
    assert (over.returncode, "is over: it ended after step" in over.stderr) == (2, True), over.stderr
    again = start("dispatcher", "--run", finished, FRESHET_SUPERVISED=str(os.getpid()))
    output, _ = again.communicate(timeout=300)  # as a supervisor starts one that ended just before its own end
    assert (again.returncode, "nothing is left to do" in output) == (0, True), output


def test_verify_finds_dense_weights_that_changed(finished: Path, tmp_path: Path) -> None:
    path = finished / "dense.safetensors"
    before = path.read_bytes()
    weights = load_file(path)
    next(iter(weights.values())).reshape(-1)[0] += 1
    save_file(weights, path)
    try:
        bad = run("verify", "--run", finished, "--json", tmp_path / "findings.json")
    finally:
        path.write_bytes(before)
    assert bad.returncode == 1
    assert "is not what it promises: replay: dense weights; see the table above" in " ".join(bad.stderr.split())
    found = {each["name"]: each["ok"] for each in json.loads((tmp_path / "findings.json").read_text())}
    assert {name: ok for name, ok in found.items() if not ok} == {"faults fired": None, "replay: dense weights": False}
    assert found["replay: predictions"] is found["replay: rows"] is found["no unreferenced file"] is True


# ── what the product reads ────────────────────────────────────────────────────────────────────────────────────────────
def read_settings(folder: Path) -> str:
    return read_stored(folder).model_dump_json()


def read_events(folder: Path) -> list[Any]:
    with closing(LogReader(folder / "log", "clicks")) as reader:
        found = []
        for partition in reader.partitions():
            offset, end = reader.span(partition)
            while offset < end:
                records = reader.read(partition, offset, 4096)
                found += records
                offset += len(records)
        return found


def read_letters(folder: Path) -> list[Any]:
    return list(read_dead_letters(folder / "log"))


def read_steps(folder: Path) -> list[Any]:
    return list(read_manifests(folder / "journal"))


def reopen_journal(folder: Path) -> list[Any]:
    JournalWriter(folder / "journal").close()
    return read_steps(folder)


def reopen_events(folder: Path) -> list[Any]:
    LogWriter(folder / "log", "clicks", 2).close()
    return read_events(folder)


def reopen_letters(folder: Path) -> list[Any]:
    DeadLetterLog(folder / "log").close()
    return read_letters(folder)


def replay(folder: Path) -> list[Any]:
    schema = Settings().event_schema
    with closing(LogReader(folder / "log", "clicks")) as reader:
        batches = [form_batch(reader, schema, manifest.ranges) for manifest in read_steps(folder)]
    return [(batch.samples.keys_BF.tobytes(), batch.samples.labels_B.tobytes()) for batch in batches]


def read_weights(folder: Path) -> bytes:
    settings = Settings()
    schema = settings.event_schema
    model = build_model(
        settings.model, schema.fields, settings.rows.dim, schema.dense, 0, torch.float32, torch.device("cpu")
    )
    dense = Dense(model, settings.model)
    load_dense(folder / "dense.safetensors", dense)
    return b"".join(tensor.numpy().tobytes() for _, tensor in dense.named())


def verify_all_checkpoints(folder: Path) -> list[Any]:
    """As ``freshet checkpoints verify`` and ``freshet verify`` do: those on record are there, and all are whole."""
    storage, on_record = (
        Storage.at(folder / "checkpoints"),
        {checkpoint.number for checkpoint in read_checkpoints(folder / "journal").checkpoints},
    )
    verdicts = list(verify_checkpoints(storage, manifest_numbers(storage)))
    damage = [problem for verdict in verdicts for problem in verdict.damage]
    gone = [manifest_name(number) for number in sorted(on_record - {verdict.number for verdict in verdicts})]
    if damage or gone:
        raise CheckpointDamaged("; ".join([*damage, *gone]))
    return verdicts


def read_logs(folder: Path) -> int:
    return sum(len(last_lines(path, 12)) > 12 for path in folder.rglob("*.log"))


LOOKS: dict[str, tuple[Look, ...]] = {
    "settings.json": (read_settings,),
    "journal": (read_steps, replay, reopen_journal),
    "dense.safetensors": (read_weights,),
    "checkpoints": (verify_all_checkpoints,),
    "log/clicks": (read_events, replay, reopen_events),
    "log/dead-letters": (read_letters, reopen_letters),
    "": (read_logs,),
}


# ── damage ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def damages(content: bytes, chance: random.Random, cases: int) -> Iterator[tuple[str, bytes | None]]:
    """(kind, what is left of the file); None: it is gone, or a folder is in its place."""
    yield from (("deleted", None), ("folder", None), ("truncated", b""))
    for length in boundaries(content, chance, cases):
        yield "truncated", content[:length]
    for _ in range(cases if content else 0):
        flipped = bytearray(content)
        flipped[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        yield "flipped", bytes(flipped)
        start = chance.randrange(len(content))
        zeros = chance.randrange(1, len(content) - start + 1)
        rest = content[start + zeros :]
        yield "zeroed" if rest else "truncated", content[:start] + b"\0" * zeros + rest
        yield "appended", content + chance.randbytes(chance.randrange(1, 100))


def boundaries(content: bytes, chance: random.Random, cases: int) -> set[int]:
    """Places where frames end, one byte around them, and some others."""
    at, found = 8 if content.startswith(b"FRESHJN") else SEGMENT.size, set()
    while (size := frame_bytes(content, at)) is not None:
        found |= {at - 1, at, at + 1}
        at += size
    found = set(chance.sample(sorted(found), min(len(found), 4 * cases)))
    return {place for place in found | {chance.randrange(len(content) + 1)} if place < len(content)}


def spoil(path: Path, kind: str, left: bytes | None) -> None:
    if left is not None:
        path.write_bytes(left)
        return
    path.unlink()
    if kind == "folder":
        path.mkdir()


def restore(folder: Path, finished: Path, file: Path) -> None:
    """Undoes the damage, and what a writer has done about it."""
    if (folder / file).is_dir():
        (folder / file).rmdir()
    if file.parts[0] in ("log", "journal"):
        shutil.rmtree(folder / file.parent)
        shutil.copytree(finished / file.parent, folder / file.parent)
    else:
        shutil.copyfile(finished / file, folder / file)


def is_a_part(found: list[Any], whole: list[Any], file: Path, kind: str, oldest: Path) -> bool:
    """Whether it is what a journal may still tell: all up to a place, or all from a checkpoint on, as after a trim.

    oldest: its first segment
    """
    if file.parts[0] != "journal" or kind not in ("truncated", "deleted"):
        return False
    is_oldest = file == oldest and kind == "deleted"
    return found == whole[: len(found)] or (is_oldest and found == whole[-len(found) :])


def look_again(look: Look, folder: Path, path: Path) -> Any:
    """What a reader finds, or None if it raises an error of ours that names the file."""
    try:
        return look(folder)
    except FreshetError as error:
        if path.name in str(error):
            return None
        raise AssertionError(f"{look.__name__} does not name {path}") from error


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about power cuts."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda file: None)


@pytest.mark.timeout(600)
def test_damage_to_any_file_of_a_run_is_named_or_changes_nothing(
    finished: Path, tmp_path: Path, quick: None, fuzz_rounds: int
) -> None:
    chance = random.Random(SEED)
    files = sorted(path.relative_to(finished) for path in finished.rglob("*") if path.is_file())
    assert len(files) > 25
    assert sum(file.parts[0] == "checkpoints" for file in files) > 3
    oldest = next(file for file in files if file.match("journal/*.log"))  # the first ones may have been trimmed
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    for file in files:
        looks = next(looks for place, looks in LOOKS.items() if file.as_posix().startswith(place))
        expected = {look: look(finished) for look in looks}
        for kind, left in damages((finished / file).read_bytes(), chance, CASES * fuzz_rounds):
            for look in looks:
                spoil(folder / file, kind, left)
                if not (
                    file.parts[0] == "journal" and kind in ("truncated", "deleted")
                ):  # without its end it may go on
                    with pytest.raises(FreshetError):
                        check_free(folder)
                found, whole = look_again(look, folder, folder / file), expected[look]
                is_right = found is None or found == whole or is_a_part(found, whole, file, kind, oldest)
                assert is_right, (file, kind, look, found)
                restore(folder, finished, file)
