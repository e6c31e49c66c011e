"""A run's folder made from the copy of its journal on Kafka, on a machine that never had it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dispatch.journal.history import JOURNAL
from dispatch.journal.restoring import restore
from infra.base.errors import ConfigError
from infra.run.folder import claim
from infra.run.settings import Settings, load_settings, store_settings
from ingest.kafka.frame_topic import FrameTopic

OF_THE_MACHINE = {"": ("folder", "curve_folder"), "api": ("database", "runs")}
"""Settings that are not in the copy, by section: they hold secrets, or are about the machine that the run was on."""


def journal_copy(settings: Settings) -> FrameTopic | None:
    """Where the journal of a run is kept besides its folder."""
    topic = settings.dispatch.journal_topic
    if topic in (settings.stream.topic, settings.stream.dead_letter_topic):
        raise ConfigError(
            f"dispatch.journal_topic is {topic!r}, and so is a topic of events or dead letters; expected a topic of "
            "its own; name another"
        )
    return FrameTopic(settings.kafka, topic, json.dumps(told(settings)).encode()) if topic else None


def told(settings: Settings) -> dict[str, Any]:
    """The settings that are kept with the copy."""
    values = settings.model_dump(mode="json")
    for section, names in OF_THE_MACHINE.items():
        for name in names:
            (values[section] if section else values).pop(name)
    return values


def restore_run(topic: str, folder: Path, config: Path | None, overrides: Iterable[str]) -> tuple[Settings, int]:
    """Makes the folder; returns the run's settings, and the number of frames of its journal.

    Given settings take the place of the run's own. Raises ConfigError if there is no journal in the topic.
    """
    overrides = [*overrides, f"folder={folder}", f"dispatch.journal_topic={topic}"]
    copied = FrameTopic(load_settings(config, overrides).kafka, topic).read()
    if not copied.bodies:
        raise ConfigError(
            f"topic {topic!r} holds no journal; expected that of a run with dispatch.journal_topic={topic}; correct "
            "the name, or kafka.servers"
        )
    settings = load_settings(config, overrides, _defaults(copied.about, topic))
    with claim(folder):
        restore(folder / JOURNAL, copied)
        store_settings(settings)
    return settings, copied.first + len(copied.bodies)


def _defaults(about: bytes, topic: str) -> Mapping[str, Any]:
    try:
        found = json.loads(about)
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    raise ConfigError(
        f"topic {topic!r} does not hold the settings of its run; expected those that the last owner of the journal "
        "wrote; give them with --config, and let another dispatcher own it once"
    )
