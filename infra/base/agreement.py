"""Settings that every process of a run must share, and how a difference between two processes is reported.

A process sends the values themselves, as text under their names, so that whoever refuses it can name both.
``infra/run/agreement.py`` decides which settings these are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_NAMED = 5
"""Most differences that one message names."""
ABSENT = "nothing"
"""Represents the value of a setting that a process does not know."""


@dataclass(frozen=True)
class Agreement:
    """The settings of one process, as text by name."""

    workers: Mapping[str, str] = field(default_factory=dict)
    """Compared between the dispatcher and each worker."""
    shards: Mapping[str, str] = field(default_factory=dict)
    """Compared by each shard with the dispatcher and the workers: those of the above that shards use."""
    frozen: Mapping[str, str] = field(default_factory=dict)
    """Compared by the dispatcher with the run's journal: a run cannot be resumed with other values."""
    earlier: Mapping[str, str] = field(default_factory=dict)
    """Values of settings that stand for what releases did which did not have them: where one is not recorded, it had
    this value.
    """


def differing(ours: Mapping[str, str], who: str, theirs: Mapping[str, str], other: str) -> str | None:
    """A message that names every difference with both values and who has which; None if there is none."""
    names = [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
    if not names:
        return None
    differences = [
        f"{name} is {ours.get(name, ABSENT)} in {who} and {theirs.get(name, ABSENT)} in {other}" for name in names
    ]
    more = [f"{len(names) - MOST_NAMED} others differ too"] if len(names) > MOST_NAMED else []
    return (
        f"settings differ: {', '.join([*differences[:MOST_NAMED], *more])}; expected the same in every process of a "
        "run; give all of them one settings file and the same --set options"
    )
