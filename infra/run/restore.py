"""A run's folder made from the copy of its journal on Kafka, on a machine that never had it."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dispatch.journal.copied import owner_name
from dispatch.journal.history import JOURNAL
from dispatch.journal.restoring import restore
from infra.base.errors import ConfigError
from infra.base.telemetry import describe_text
from infra.run.folder import claim
from infra.run.settings import Settings, load_settings, store_settings
from ingest.kafka.frame_topic import FrameTopic
from ingest.log.frame_copy import CopiedFrames

OF_THE_MACHINE = ("folder", "curve_folder", "api.database", "api.runs")
"""Settings that are not in the copy: they are about the machine that the run was on, or may hold secrets."""


class CopiedSettings(msgspec.Struct, frozen=True):
    """What the copy of a journal says of its run."""

    settings: dict[str, Any]
    missing: tuple[str, ...]
    """Names of the settings that the run had, and that are not here."""


def journal_copy(settings: Settings) -> FrameTopic | None:
    """Where the journal of a run is kept besides its folder."""
    topic = settings.dispatch.journal_topic
    if topic in (settings.stream.topic, settings.stream.dead_letter_topic):
        raise ConfigError(
            f"dispatch.journal_topic is {topic!r}, and so is a topic of events or dead letters; expected a topic of "
            "its own; name another"
        )
    return FrameTopic(settings.kafka, topic, msgspec.json.encode(told(settings))) if topic else None


def told(settings: Settings) -> CopiedSettings:
    """The settings that are kept with the copy: all but those of the machine, and those with a secret in them."""
    sections: dict[str, Any] = {}
    missing = []
    for name, value in flat(settings.model_dump(mode="json")):
        holds_secret = isinstance(value, str) and describe_text(value) != value
        if name not in OF_THE_MACHINE and not holds_secret:
            section, _, last = name.rpartition(".")
            (sections.setdefault(section, {}) if section else sections)[last] = value
        elif value is not None and name != "folder":
            missing.append(name)
    return CopiedSettings(sections, tuple(missing))


def flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each setting with its name, as in stream.batch."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", each) for inner, each in value.items())
        else:
            yield name, value


def restore_if_there(settings: Settings, config: Path | None, overrides: Iterable[str]) -> None:
    """Restores the run of these settings, unless there is none yet, or their folder is what continues it."""
    topic = settings.dispatch.journal_topic
    if not topic:
        raise ConfigError(
            "--restore is given without dispatch.journal_topic; expected the topic with the journal's copy; set it"
        )
    copied = FrameTopic(settings.kafka, topic).read()
    if copied.bodies and owner_name(settings.folder / JOURNAL) != copied.owner:
        _restore(copied, topic, settings.folder, config, overrides)


def restore_run(topic: str, folder: Path, config: Path | None, overrides: Iterable[str]) -> "RestoredRun":
    """Makes the folder. Given settings take the place of the run's own.

    Raises ConfigError if there is no journal in the topic.
    """
    overrides = [*overrides, f"folder={folder}"]
    copied = FrameTopic(load_settings(config, overrides).kafka, topic).read()
    if not copied.bodies:
        raise ConfigError(
            f"topic {topic!r} holds no journal; expected that of a run with dispatch.journal_topic={topic}; correct "
            "the name, or kafka.servers"
        )
    return _restore(copied, topic, folder, config, overrides)


def _restore(
    copied: CopiedFrames, topic: str, folder: Path, config: Path | None, overrides: Iterable[str]
) -> "RestoredRun":
    about = _decode(copied.about, topic)
    given = [*overrides, f"folder={folder}", f"dispatch.journal_topic={topic}"]
    settings = load_settings(config, given, about.settings)
    with claim(folder):
        restore(folder / JOURNAL, copied)
        store_settings(settings)
    usual = dict(flat(Settings.model_construct().model_dump(mode="json")))
    now = dict(flat(settings.model_dump(mode="json")))
    missing = tuple(name for name in about.missing if now[name] == usual[name])
    return RestoredRun(settings.run, copied.first + len(copied.bodies), missing)


class RestoredRun(NamedTuple):
    """A run that was restored."""

    run: str
    frames: int
    """Frames of its journal so far."""
    missing: tuple[str, ...]
    """Settings that the run had, and that are neither in the copy nor given."""


def _decode(about: bytes, topic: str) -> CopiedSettings:
    try:
        return msgspec.json.decode(about, type=CopiedSettings)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"topic {topic!r} does not hold the settings of its run: {error}; expected what the journal's owner wrote "
            "there; restore it with the version that wrote it"
        ) from error
