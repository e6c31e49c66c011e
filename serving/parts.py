"""The objects that routes use: the served model, where it comes from, and how it is chosen."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends

from infra.base.storage import Storage
from infra.web.app import parts_of
from infra.web.parts import WebParts
from ingest.codec.decoder import Decoder
from serving.config import ServingConfig
from serving.copies import Copies
from serving.engine import Engine
from serving.follow import Follower
from serving.labels.served import ServedLabels


@dataclass(frozen=True)
class ServingParts:
    """One instance of each part; every route receives it as a dependency."""

    config: ServingConfig
    web: WebParts
    storage: Storage
    decoder: Decoder
    copies: Copies
    engine: Engine
    follower: Follower
    labels: ServedLabels | None = None
    """None: predictions are not logged."""
    choosing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the choice file is changed."""


Parts = Annotated[ServingParts, Depends(parts_of)]
