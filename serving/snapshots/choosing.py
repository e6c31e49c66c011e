"""What people want served, changed beside the cuts: it works while training, serving and SQL are down.

To pin: 1. the cut is kept (``dispatch.cuts.retention``), 2. the choice names it, 3. what was pinned before is let go. A
crash after 1 or 2 leaves a cut that is kept and not wanted, which 'freshet cuts unpin' lets go.
"""

from collections.abc import Iterable
from time import time

import msgspec

from dispatch.cuts.retention import pin, unpin
from infra.errors import ConfigError, FreshetError
from infra.storage import Storage
from ps.cuts.choice import Choice, read_choice, write_choice
from ps.cuts.manifest import CutManifest
from ps.errors import CutDamaged
from serving.versions import candidates, version_of

MOST_RELEASED = 1000


class NoSuchCut(FreshetError):
    """A cut that is to be pinned is not there, or cannot be read."""


def choose_pin(storage: Storage, cut: int, actor: str, reason: str) -> Choice:
    """This cut is served until it is unpinned; raises NoSuchCut."""
    before = read_choice(storage)
    try:
        pin(storage, cut)  # 1
    except CutDamaged as error:
        raise NoSuchCut(f"cut {cut} cannot be pinned: {error}") from error
    choice = _write(storage, before, actor, reason, pinned=cut)  # 2
    if before.pinned not in (None, cut):
        unpin(storage, before.pinned)  # 3
    return choice


def choose_newest(storage: Storage, actor: str, reason: str) -> Choice:
    """The newest good version is served again."""
    before = read_choice(storage)
    choice = _write(storage, before, actor, reason, pinned=None)
    if before.pinned is not None:
        unpin(storage, before.pinned)
    return choice


def choose_release(storage: Storage, cut: int, actor: str, reason: str) -> Choice:
    """This cut may be served although it is held back."""
    before = read_choice(storage)
    released = tuple(number for number in before.released if number != cut)
    return _write(storage, before, actor, reason, released=(*released, cut)[-MOST_RELEASED:])


def wanted_of(manifests: Iterable[CutManifest], choice: Choice) -> CutManifest | None:
    """The version that a server started now would serve."""
    return next(candidates(manifests, choice, None, True), None)


def before_wanted(manifests: Iterable[CutManifest], choice: Choice) -> CutManifest:
    """The newest version that may be served and is older than what is wanted; raises ConfigError if there is none."""
    known = list(manifests)
    wanted = wanted_of(known, choice)
    older = [each for each in known if wanted and version_of(each) < version_of(wanted) and choice.allows(each)]
    if not older:
        shown = "nothing" if wanted is None else f"cut {wanted.number}"
        raise ConfigError(
            f"{shown} is wanted, and no older version may be served; expected one to go back to; pin one with "
            "'freshet snapshots pin'"
        )
    return max(older, key=version_of)


def _write(storage: Storage, before: Choice, actor: str, reason: str, **changed: object) -> Choice:
    choice = msgspec.structs.replace(before, actor=actor, reason=reason, at_seconds=time(), **changed)
    write_choice(storage, choice)
    return choice
