"""What routes are made of."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from api.access.auditing import AuditQueue
from api.access.tokens import TokenCache
from api.config import ApiConfig
from api.store.store import SqlStore
from infra.base.storage import Storage
from infra.base.telemetry import Meter
from ingest.codec.decoder import Decoder
from serving.config import ServingConfig
from serving.copies import Copies
from serving.engine import Engine
from serving.follow import Follower
from serving.labels.served import ServedLabels


@dataclass(frozen=True)
class ServingParts:
    """One of each."""

    config: ServingConfig
    limits: ApiConfig
    """sizes and durations of requests are those of the API"""
    store: SqlStore
    tokens: TokenCache
    audit: AuditQueue
    storage: Storage
    decoder: Decoder
    copies: Copies
    engine: Engine
    follower: Follower
    meter: Meter
    labels: ServedLabels | None = None
    """None: predictions are not logged"""
    token_command: str = "freshet token create"
    """what makes a token for this process"""
    choosing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """held by whoever changes the choice file"""


def parts_of(request: Request) -> ServingParts:
    parts: ServingParts = request.app.state.parts
    return parts


Parts = Annotated[ServingParts, Depends(parts_of)]
