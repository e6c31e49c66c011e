"""What people want of a run in place of its settings: the sum of the commands that were carried out."""

import msgspec

AUTO = "auto"
NONE = "none"


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


def with_name(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """In order of the alphabet, so that it does not matter in which order, and how often, records were read."""
    return names if name in names else tuple(sorted((*names, name)))
