"""The values of slices are found in events of the run's stream."""

import asyncio
from pathlib import Path

from api.runs.places import Place
from api.runs.slices import SliceNames
from dispatch.progress.quality import OTHERS, QualityOverTime, QualityWindow, SliceQuality
from infra.run.settings import load_settings
from ingest.convert import Event
from ingest.keys import key_of
from tests.ingest.topics import write_json

NAMED, UNKNOWN = f"{key_of('device', 'tv'):016x}", "00000000000000ff"


def place_of(folder: Path) -> Place:
    settings = load_settings(None, [f"stream.folder={folder / 'log'}"], run="r", folder=folder)
    return Place("r", folder, settings.model_dump(mode="json"))


def described(names: SliceNames, place: Place) -> list[str | None]:
    slices = tuple(SliceQuality(field="device", key=key, samples=1) for key in (NAMED, UNKNOWN, OTHERS))
    window = QualityWindow(first_step=1, last_step=1, samples_before=0, slices=slices)
    found = asyncio.run(names.described(place, QualityOverTime(windows=(window,), run=window)))
    assert found["windows"][0]["slices"] == found["run"]["slices"]
    assert found["run"]["quality"]["value"] is None
    return [each["value"] for each in found["run"]["slices"]]


def test_a_value_is_found_once_and_kept(tmp_path: Path) -> None:
    write_json(tmp_path / "log", [Event(1.0, 1, {"device": "tv"})] * 2)
    names, place = SliceNames({}), place_of(tmp_path)
    assert described(names, place) == ['"tv"', None, None]
    (tmp_path / "log").rename(tmp_path / "gone")
    assert described(names, place) == ['"tv"', None, None]
    assert described(SliceNames({}), place) == [None, None, None]


def test_a_run_whose_settings_are_not_readable_has_slices_without_values(tmp_path: Path) -> None:
    assert described(SliceNames({}), Place("r", tmp_path, {})) == [None, None, None]
