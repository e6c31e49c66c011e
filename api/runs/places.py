"""Where runs are: folders with a journal and with stored settings, which contain the name of the run.

The supervisor of a run creates the journal's folder before it stores the settings, so a run is found while it is still
starting. An agent's folder has settings, too: those of the run that its workers train. It is not the folder of that
run, whose dispatcher and journal may be on another machine.

Names of runs come from clients and are compared with the names found here; a path is never built from one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from dispatch.journal.history import JOURNAL
from dispatch.journal.occupied import is_under_way
from infra.base.config import check_names
from infra.base.errors import ConfigError
from infra.base.run_folder import (
    AGENT,
    ENDPOINTS,
    STORED_SETTINGS,
    dispatcher_endpoint,
    is_run,
    read_endpoint,
    read_line,
)
from infra.base.telemetry import describe
from infra.base.wire import Curve, load_curve


@dataclass(frozen=True)
class Place:
    """A run and its folder."""

    name: str
    folder: Path
    settings: Mapping[str, Any] = field(repr=False)
    """The effective settings, as the run stored them."""
    is_under_way: bool = field(default=False, compare=False)
    """Whether any process was working in the folder when it was read."""

    def endpoint(self, word: int) -> str | None:
        """One of the dispatcher's endpoints; None if it has none now."""
        return dispatcher_endpoint(self.folder, word)

    def agent(self) -> str | None:
        """The endpoint of the run's supervisor; None if it has none."""
        return read_endpoint(self.folder, AGENT)

    def curve(self) -> Curve | None:
        """The keys for connections to the run; None: they are not encrypted."""
        folder = self.settings.get("curve_folder")
        return load_curve(Path(folder), "server") if folder else None

    def topic(self) -> str:
        stream = self.settings.get("stream", {})
        return str(stream.get("topic", ""))

    def shown_settings(self) -> dict[str, Any]:
        """The effective settings without secrets."""
        return describe({name: value for name, value in self.settings.items() if name != "checksum"})

    def metrics(self) -> dict[str, str]:
        """Addresses of the metrics of its processes, by process."""
        files = sorted((self.folder / ENDPOINTS).glob("*.metrics"))
        return {file.stem: text for file in files if (text := read_line(file))}


def find_runs(root: Path) -> dict[str, Place]:
    """The runs in a folder, by name: the folder itself is a run, or its children are.

    If several have the same name, the one under way is chosen, or else the newest.
    """
    folders = (folder for folder in find_folders(root) if (folder / JOURNAL).is_dir())
    places = [place for folder in folders if (place := _place(folder)) is not None]
    return {place.name: place for place in sorted(places, key=lambda place: place.is_under_way)}


def find_folders(root: Path) -> list[Path]:
    """The folder itself if it is that of a run or agent; otherwise its children that are, oldest first."""
    if is_run(root):
        return [root]
    try:
        return sorted((child for child in root.iterdir() if is_run(child)), key=lambda child: child.stat().st_mtime)
    except OSError:
        return []


def _place(folder: Path) -> Place | None:
    """The run in a folder; None if its settings cannot be read, for example while they are being written."""
    try:
        settings = json.loads((folder / STORED_SETTINGS).read_bytes())
        return Place(check_names(str(settings["run"])), folder, settings, is_under_way(folder))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, ConfigError) as error:
        structlog.get_logger().debug("no run here", folder=str(folder), reason=str(error))
        return None
