"""A run that was interrupted: the settings with which it is resumed, and those of a replay of its journal."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dispatch.config import DispatchConfig
from dispatch.journal.history import JOURNAL, History, check_settings, read_history
from infra.base.errors import ConfigError
from infra.run.agreement import agreement_of
from infra.run.folder import check_free, checkpoint_place
from infra.run.settings import Settings, load_settings, read_stored
from ingest.kafka.config import SECRETS

KEPT = ("cache_rows", "eviction", "silence_seconds", "report_seconds", "drain_seconds")
"""Settings of the dispatcher that a replay takes from the run."""


def resumed(chosen: Settings, config: Path | None, overrides: Iterable[str]) -> Settings | None:
    """Settings with which the run in the chosen folder is resumed: its own unless others are given; None if there is
    none.

    Raises ConfigError if it is under way or has ended, or cannot be resumed with the given settings.
    """
    check_free(chosen.folder)
    history = read_history(chosen.folder / JOURNAL)
    if history.begun is None:
        return None
    settings = load_settings(config, overrides, _as_defaults(read_stored(chosen.folder)))
    agreement = agreement_of(settings)
    check_settings(history, settings.run, settings.folder, agreement.frozen, agreement.earlier)
    return settings


def check_not_started(given: Iterable[str]) -> None:
    """Raises ConfigError if a resumed run is told where to begin."""
    if list(given):
        raise ConfigError(
            f"{' '.join(given)} is given, and the run continues where it was interrupted; expected neither --from-time "
            "nor --from-offsets; leave them out, or give another folder with --run"
        )


def replayed(folder: Path, into: Path, last_step: int | None) -> tuple[Settings, History]:
    """Settings with which the journal in a folder is replayed into another one, and the part of it that is.

    As many workers as its steps need, as fast as they can; everything else that results depend on is the run's own. All
    of it is on this machine, which may not have the workers' keys, so a replay needs none.
    """
    history = read_history(folder / JOURNAL)
    first = history.base.step + 1
    if last_step is not None and not first <= last_step <= history.step:
        raise ConfigError(f"--to {last_step} is no step of the run; expected {first} to {history.step}; correct it")
    if not history.step:
        raise ConfigError(
            f"no steps are on record in {folder}; expected the folder of a run with a journal; correct the folder"
        )
    history = history if last_step is None else history.up_to(last_step)
    stored = read_stored(folder)
    plain = DispatchConfig(policy="round_robin", workers=history.workers)
    dispatch = plain.model_copy(update={name: getattr(stored.dispatch, name) for name in KEPT})
    # the run may be under way, and hold its ports
    ps = stored.ps.model_copy(update={"endpoints": (), "publisher_endpoints": ()})
    # if the journal begins with a checkpoint, so does the replay; it takes no checkpoints itself
    checkpoints = stored.checkpoints.model_copy(
        update={"url": checkpoint_place(folder, stored.checkpoints.url), "seconds": 0.0}
    )
    return stored.model_copy(
        update={"folder": into, "dispatch": dispatch, "ps": ps, "checkpoints": checkpoints, "curve_folder": None}
    ), history


def _as_defaults(stored: Settings) -> dict[str, Any]:
    """Without secrets, which are not stored: they must be given again."""
    values = stored.model_dump(mode="json")
    values["kafka"] = {name: value for name, value in values["kafka"].items() if name not in SECRETS}
    return values
