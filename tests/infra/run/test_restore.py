"""What the copy of a journal says of its run: all that another machine needs, and no secret."""

from pathlib import Path

import msgspec
import pytest

from infra.base.errors import ConfigError
from infra.run.restore import CopiedSettings, journal_copy, restore_if_there, told
from infra.run.settings import Settings, load_settings

SECRET = "geheim"
URL = f"postgresql://freshet:{SECRET}@db/freshet"


def settings_with(*overrides: str) -> Settings:
    return load_settings(None, ["stream.batch=77", "run=clicks", *overrides])


def test_another_machine_gets_all_settings_but_those_of_this_one(tmp_path: Path) -> None:
    settings = settings_with(f"folder={tmp_path}", "stream.topic=mine")
    copied = told(settings)
    assert copied.missing == ()
    again = load_settings(None, ["folder=elsewhere"], copied.settings)
    assert again == settings.model_copy(update={"folder": Path("elsewhere")})


def test_no_secret_is_in_the_copy_and_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRESHET_KAFKA__PASSWORD", SECRET)
    login = "kafka.protocol=SASL_SSL", "kafka.username=alice"
    stored = f"checkpoints.url=s3://key:{SECRET}@models/clicks"
    settings = settings_with(f"api.database={URL}", f"curve_folder={tmp_path}", stored, *login)
    copied = told(settings)
    assert SECRET not in msgspec.json.encode(copied).decode()
    assert sorted(copied.missing) == ["api.database", "checkpoints.url", "curve_folder"]
    assert copied.settings["kafka"]["username"] == "alice"


def test_a_copy_needs_a_topic_of_its_own() -> None:
    assert journal_copy(settings_with()) is None
    for topic in ("stream.topic=journal", "stream.dead_letter_topic=journal"):
        with pytest.raises(ConfigError, match="expected a topic of its own"):
            journal_copy(settings_with(topic, "dispatch.journal_topic=journal"))


def test_a_run_without_a_topic_cannot_be_restored() -> None:
    with pytest.raises(ConfigError, match=r"--restore is given without dispatch\.journal_topic"):
        restore_if_there(settings_with(), None, ())


def test_what_a_copy_says_is_read_as_it_was_written() -> None:
    copied = told(settings_with())
    assert msgspec.json.decode(msgspec.json.encode(copied), type=CopiedSettings) == copied
