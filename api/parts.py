"""The objects that routes use: the database, the runs, and a signal that the process is about to end."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends

from api.runs.followed import FollowedRuns
from api.runs.samples import SampleSinks
from api.runs.slices import SliceNames
from api.shared import SharedAnswers
from api.store.store import SqlStore
from infra.web.app import parts_of
from infra.web.parts import WebParts


@dataclass(frozen=True)
class ApiParts:
    """One instance of each part; every route receives it as a dependency."""

    web: WebParts
    store: SqlStore
    """The same store as ``web`` uses, with the tables of runs and commands."""
    runs: FollowedRuns
    samples: SampleSinks
    slices: SliceNames
    plugins: bool = False
    """Whether a command may name code of another package."""
    answers: SharedAnswers = field(default_factory=SharedAnswers)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when event streams should end."""


Parts = Annotated[ApiParts, Depends(parts_of)]
