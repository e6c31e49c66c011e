"""What people want of a run: the combined effect of the recorded commands.

A pure function of records, so a restarted dispatcher, and one that goes back to a checkpoint, want the same as the one
before: a checkpoint has what was wanted when it was begun, and the records after it the rest. Applying a record twice
changes nothing, since the newest value of each setting counts.
"""

from collections.abc import Iterable

import msgspec

from dispatch.journal.records import AlphaChanged, AnyRecord, Commanded, GenerationStarted, Stopped

AUTO = "auto"
NONE = "none"
SteeringRecord = Commanded | AlphaChanged | GenerationStarted | Stopped
STOPPED = "stopped"
"""Verb of the record of a completed stop, if nothing was trained that could be saved."""


class ShareLimits(msgspec.Struct, frozen=True):
    """Bounds of one worker's elastic capacity, in equal shares of the batch."""

    least: float
    largest: float


class Desired(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted instead of the settings; None and empty: as in the settings."""

    is_paused: bool = False
    is_stopping: bool = False
    """Whether the run is to stop, and has not."""
    stopped_at: float = 0.0
    """When it was last stopped, in seconds since 1970: commands given before are not for the resumed run; 0: never."""
    is_auto: bool = False
    """Whether alpha was returned to the dispatcher."""
    alpha: float | None = None
    """Share of exact solving."""
    auto_alpha: float | None = None
    """The alpha that the dispatcher itself chose last."""
    alpha_reason: str = ""
    """Reason of the newest change of alpha, by anyone."""
    alpha_at: float = 0.0
    """When that was; 0: never."""
    policy: str | None = None
    deadline: bool | None = None
    skip_above: str = ""
    """A number of events, or none."""
    links: dict[str, float] = {}
    """Gbit/s, by worker; 0: not known."""
    shares: dict[str, ShareLimits] = {}
    """Limits by worker."""
    draining: tuple[str, ...] = ()
    """Workers that are to leave, and are still in the newest generation."""
    removed: tuple[str, ...] = ()
    """Workers that may never come back."""


def follow(desired: Desired, record: AnyRecord) -> Desired:
    """What is wanted after a record; the same object if it changes nothing."""
    match record:
        case Commanded():
            return _obey(desired, record)
        case AlphaChanged():
            why = {"alpha_reason": record.reason, "alpha_at": record.at_seconds}
            return msgspec.structs.replace(desired, auto_alpha=record.alpha, **why)
        case GenerationStarted() if desired.draining:
            still = tuple(name for name in desired.draining if name in record.members)
            return msgspec.structs.replace(desired, draining=still)
        case Stopped():
            return msgspec.structs.replace(desired, is_stopping=False, stopped_at=record.at_seconds)
    return desired


def follow_all(desired: Desired, records: Iterable[AnyRecord]) -> Desired:
    for record in records:
        desired = follow(desired, record)
    return desired


def _obey(desired: Desired, command: Commanded) -> Desired:
    changed = msgspec.structs.replace
    worker = command.worker
    value = command.value
    match command.verb:
        case "pause" | "resume":
            return changed(desired, is_paused=command.verb == "pause")
        case "stop":
            return changed(desired, is_stopping=True)
        case "stopped":
            return changed(desired, is_stopping=False, stopped_at=command.at_seconds)
        case "drain":
            return changed(desired, draining=_with(desired.draining, worker))
        case "remove":
            return changed(desired, removed=_with(desired.removed, worker))
        case "alpha":
            is_auto = value == AUTO
            why = {"alpha_reason": command.reason, "alpha_at": command.at_seconds}
            return changed(desired, is_auto=is_auto, alpha=None if is_auto else float(value), **why)
        case "policy":
            return changed(desired, policy=value)
        case "deadline":
            return changed(desired, deadline=value == "true")
        case "skip_above":
            return changed(desired, skip_above=value)
        case "link":
            return changed(desired, links={**desired.links, worker: float(value)})
        case "shares":
            return changed(desired, shares={**desired.shares, worker: parse_shares(value)})
    return desired


def parse_shares(written: str) -> ShareLimits:
    """Parses LEAST:LARGEST; raises ValueError for anything else."""
    least, largest = written.split(":")
    return ShareLimits(float(least), float(largest))


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Sorted alphabetically, so that order and repetition of records do not matter."""
    return names if name in names else tuple(sorted((*names, name)))
