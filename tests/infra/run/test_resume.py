from pathlib import Path
from typing import Any

import pytest

from dispatch.errors import RunEnded, SettingsChanged
from dispatch.journal.digest import digest_of
from dispatch.journal.log import JournalWriter
from dispatch.journal.records import Begun, Ended, GenerationStarted, StepDecided
from infra.base.errors import ConfigError
from infra.run.agreement import agreement_of
from infra.run.cluster import with_threads
from infra.run.resume import check_not_started, replayed, resumed
from infra.run.settings import Settings, load_settings, store_settings, taken_cores, usable_cores
from ingest.batches.manifest import Manifest


def chosen(folder: Path, *overrides: str) -> Settings:
    return load_settings(None, overrides, {"run": "now"}, folder=folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run that was interrupted after two steps of two workers."""
    settings = chosen(tmp_path, "run=then", "rows.dim=4", "dispatch.workers=2", "dispatch.policy=laia", "ps.shards=3")
    store_settings(settings)
    frozen = dict(agreement_of(settings).frozen)
    journal = JournalWriter(tmp_path / "journal")
    journal.note(Begun("then", "log:clicks", {}, frozen, digest_of(frozen), ("torch",)))
    journal.append(GenerationStarted(1, ("a", "b"), True, 0, 0, "start"))
    for step in (1, 2):
        journal.append(StepDecided(Manifest("then", 1, step, (), 2, 0), b"\0\1", 1.0, 9))
    journal.close()
    return tmp_path


def test_a_run_goes_on_with_its_own_settings_where_none_are_given(folder: Path) -> None:
    settings = resumed(chosen(folder), None, [f"folder={folder}", "dispatch.policy=random", "ps.shards=1"])
    assert settings is not None
    assert (settings.run, settings.rows.dim, settings.dispatch.workers) == ("then", 4, 2)
    assert (settings.dispatch.policy, settings.ps.shards) == ("random", 1)


def test_a_folder_without_a_run_is_for_a_new_one(tmp_path: Path) -> None:
    assert resumed(chosen(tmp_path / "new"), None, []) is None
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("rows.dim=8", r"rows\.dim was 4 and is 8"),
        ("seed=7", "seed was 0 and is 7"),
        ("stream.topic=other", r"stream\.topic was clicks and is other"),
    ],
)
def test_what_must_stay_is_named_before_anything_starts(folder: Path, override: str, told: str) -> None:
    with pytest.raises(SettingsChanged, match=told):
        resumed(chosen(folder), None, [f"folder={folder}", override])


def test_fewer_workers_than_the_steps_on_record_had_are_no_obstacle(folder: Path) -> None:
    settings = resumed(chosen(folder), None, [f"folder={folder}", "dispatch.workers=1"])
    assert settings is not None
    assert settings.dispatch.workers == 1


def test_a_run_that_is_over_is_not_resumed(folder: Path) -> None:
    journal = JournalWriter(folder / "journal")
    journal.append(Ended("SIGTERM", 2, 9, "digest"))
    journal.close()
    with pytest.raises(RunEnded, match="is over"):
        resumed(chosen(folder), None, [])
    settings, history = replayed(folder, folder / "replay", None)
    assert (settings.folder, settings.dispatch.workers, history.step) == (folder / "replay", 2, 2)


def test_a_replay_uses_no_port_of_a_run_that_may_be_under_way(folder: Path) -> None:
    fixed = ("dispatch.endpoint=tcp://127.0.0.1:5500", "ps.endpoints=tcp://127.0.0.1:5600", "dispatch.drain_seconds=7")
    store_settings(chosen(folder, *fixed, "ps.publisher_endpoints=tcp://127.0.0.1:5601"))
    settings, _ = replayed(folder, folder / "replay", None)
    assert (settings.dispatch.endpoint, settings.ps.endpoints) == ("tcp://127.0.0.1:*", ())
    assert settings.ps.publisher_endpoints == ()
    assert settings.dispatch.drain_seconds == 7


def test_a_replay_needs_no_keys(folder: Path) -> None:
    store_settings(chosen(folder, f"curve_folder={folder / 'keys'}"))
    assert replayed(folder, folder / "replay", None)[0].curve_folder is None


def test_a_run_that_goes_on_cannot_be_told_where_to_begin() -> None:
    check_not_started(())
    with pytest.raises(ConfigError, match="--from-time 5 is given, and the run continues"):
        check_not_started(("--from-time", "5"))


def test_a_replay_ends_with_a_step_of_the_run(folder: Path) -> None:
    assert replayed(folder, folder / "replay", 1)[1].step == 1
    with pytest.raises(ConfigError, match=r"--to 3 is no step of the run; expected 1 to 2"):
        replayed(folder, folder / "replay", 3)
    with pytest.raises(ConfigError, match="no steps are on record"):
        replayed(folder / "nowhere", folder / "replay", None)


def test_the_threads_of_a_worker_are_fixed_when_a_run_begins(folder: Path) -> None:
    begun = with_threads(chosen(folder))
    assert begun.trainer.threads > 0
    assert begun.trainer.shared_cores == usable_cores()
    assert with_threads(begun) == begun


def test_a_number_of_threads_that_was_chosen_holds_in_every_step(folder: Path) -> None:
    given = chosen(folder)
    given = given.model_copy(update={"trainer": given.trainer.model_copy(update={"threads": 3})})
    assert with_threads(given) == given


@pytest.mark.parametrize(
    ("trainer", "has_gpu", "cores", "taken"),
    [
        ({"threads": 2, "device": "cpu"}, True, 16, 8),
        ({"threads": 2, "device": "cpu"}, False, 8, 0),  # 8 of 16: the workers have the others
        ({"threads": 3}, False, 12, 8),
        ({"threads": 2}, True, 16, 0),
        ({"threads": 2, "device": "cuda"}, False, 16, 0),
        ({"threads": 0}, False, 16, 0),  # nobody was dealt any
    ],
)
def test_cores_of_workers_are_taken_from_the_dispatcher(
    trainer: dict[str, Any], has_gpu: bool, cores: int, taken: int, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setattr("infra.run.settings.usable_cores", lambda: cores)
    given = chosen(folder)
    given = given.model_copy(
        update={
            "trainer": given.trainer.model_copy(update=trainer),
            "dispatch": given.dispatch.model_copy(update={"workers": 4}),
        }
    )
    assert taken_cores(given, lambda: has_gpu) == taken
