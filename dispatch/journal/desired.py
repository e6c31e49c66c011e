"""What people want of a run, as far as it lasts: the sum of the commands on record.

A pure function of records, so a dispatcher that is started anew, and one that goes back to a checkpoint, want the same
as the one before: a checkpoint has what was wanted when it was begun, and the records after it the rest. A record that
is followed twice changes nothing, since for each thing the newest counts.
"""

from collections.abc import Iterable

import msgspec

from dispatch.journal.records import AlphaChanged, AnyRecord, Commanded, GenerationStarted, Stopped

AUTO = "auto"
NONE = "none"
SteeringRecord = Commanded | AlphaChanged | GenerationStarted | Stopped
STOPPED = "stopped"
"""verb of the record of a stop that is done with, though nothing was trained that could be saved"""


class ShareLimits(msgspec.Struct, frozen=True):
    """Bounds of one worker's elastic capacity, in equal shares of the batch."""

    least: float
    largest: float


class Desired(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted instead of the settings; None and empty: as they say."""

    is_paused: bool = False
    is_stopping: bool = False
    """whether the run is to stop, and has not"""
    stopped_at: float = 0.0
    """when it was stopped the last time, since 1970: what was given before is not for the run that goes on; 0: never"""
    is_auto: bool = False
    """whether alpha was given back to the dispatcher"""
    alpha: float | None = None
    """share of exact solving"""
    auto_alpha: float | None = None
    """what the dispatcher itself has chosen last"""
    alpha_reason: str = ""
    """of the newest change of alpha, whoever made it"""
    alpha_at: float = 0.0
    """when that was; 0: never"""
    policy: str | None = None
    deadline: bool | None = None
    skip_above: str = ""
    """a number of events, or none"""
    links: dict[str, float] = {}
    """Gbit/s, by worker; 0: not known"""
    shares: dict[str, ShareLimits] = {}
    """by worker"""
    draining: tuple[str, ...] = ()
    """workers that are to leave, and no generation has started without"""
    removed: tuple[str, ...] = ()
    """workers that may never come back"""


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
    """Of LEAST:LARGEST; raises ValueError for anything else."""
    least, largest = written.split(":")
    return ShareLimits(float(least), float(largest))


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """In order of the alphabet, so that it does not matter in which order, and how often, records were followed."""
    return names if name in names else tuple(sorted((*names, name)))
