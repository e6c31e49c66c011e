"""The raw values of slices: a run knows keys, which are hashes, so values are looked for in events of its stream."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import SecretStr, ValidationError

from api.runs.places import Place
from dispatch.progress.quality import OTHERS, QualityOverTime
from infra.base.errors import FreshetError
from ingest.config import StreamConfig
from ingest.kafka.config import KafkaConfig
from ingest.names import find_names, newest_payloads
from ingest.schema import load_schema

EVENTS = 20_000
"""Events of the stream that are read to find values."""
Names = dict[str, str | None]
"""Values by key, as JSON; None: not found."""


class SliceNames:
    """The values that were found for each run. A key is looked for once."""

    def __init__(self, secrets: Mapping[str, SecretStr]) -> None:
        self._secrets = secrets
        self._known: dict[str, tuple[Place, Names]] = {}

    async def described(self, place: Place, found: QualityOverTime) -> dict[str, Any]:
        """The quality of a run with the value of each slice; reads events in a thread if there are new keys."""
        known, names = self._known.get(place.name, (place, {}))
        if known is not place:
            names = {}
        self._known[place.name] = place, names
        described: dict[str, Any] = msgspec.to_builtins(found)
        windows = [window for window in (*described["windows"], described["run"]) if window is not None]
        slices = [each for window in windows for each in (window["quality"], *window["slices"])]
        if unknown := {each["key"] for each in slices} - names.keys() - {"", OTHERS}:
            names |= await asyncio.to_thread(_find, place, self._secrets, unknown)
        for each in slices:
            each["value"] = names.get(each["key"])
        return described


def _find(place: Place, secrets: Mapping[str, SecretStr], keys: set[str]) -> Names:
    """The values of keys; None for those that cannot be found, or if the run's stream cannot be read."""
    try:
        stream = StreamConfig.model_validate(place.settings["stream"])
        kafka = KafkaConfig.model_validate({**place.settings["kafka"], **secrets})
        schema = load_schema(stream.schema_name)
    except (KeyError, ValidationError, FreshetError):
        return dict.fromkeys(keys)
    found = find_names((int(key, 16) for key in keys), schema, newest_payloads(stream, kafka, EVENTS))
    return {key: None if (name := found.get(int(key, 16))) is None else name.value for key in keys}
