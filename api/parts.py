"""What routes are made of: the database, the runs, the tokens, and whether the process is about to end."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from api.access.auditing import AuditQueue
from api.access.tokens import TokenCache
from api.config import ApiConfig
from api.runs.followed import FollowedRuns
from api.runs.samples import SampleSinks
from api.shared import SharedAnswers
from api.store.store import SqlStore
from infra.base.telemetry import Meter


@dataclass(frozen=True)
class ApiParts:
    """One of each."""

    config: ApiConfig
    store: SqlStore
    runs: FollowedRuns
    tokens: TokenCache
    audit: AuditQueue
    samples: SampleSinks
    meter: Meter
    answers: SharedAnswers = field(default_factory=SharedAnswers)
    token_command: str = "freshet token create"
    """what makes a token for this process"""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """set when event streams should end"""


def parts_of(request: Request) -> ApiParts:
    parts: ApiParts = request.app.state.parts
    return parts


Parts = Annotated[ApiParts, Depends(parts_of)]
