"""What every process with HTTP has before it has anything of its own: a database, tokens, the audit trail, metrics."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import time
from typing import TypeVar

import structlog

from infra.base.errors import ConfigError
from infra.base.process import Stop
from infra.base.telemetry import Meter
from infra.web.auditing import AuditQueue, auditing
from infra.web.client import is_loopback
from infra.web.config import WebConfig
from infra.web.errors import DatabaseAway
from infra.web.store.access import AccessStore
from infra.web.tokens import TokenCache

StoreT = TypeVar("StoreT", bound=AccessStore)
DATABASE_SECONDS = 2.0
"""between two attempts to open the database"""


@dataclass(frozen=True)
class WebParts:
    """One of each."""

    config: WebConfig
    store: AccessStore
    tokens: TokenCache
    audit: AuditQueue
    meter: Meter
    token_command: str
    """what makes a token for this process, without the scope"""


@asynccontextmanager
async def opened_store(kind: type[StoreT], url: str, stop: Stop) -> AsyncIterator[StoreT | None]:
    """Waits for a database that is away; None if a stop is requested meanwhile."""
    store = await _open(kind, url, stop)
    try:
        yield store
    finally:
        if store is not None:
            await store.close()


async def _open(kind: type[StoreT], url: str, stop: Stop) -> StoreT | None:
    while not stop.requested:
        try:
            return await kind.open(url)
        except DatabaseAway as error:
            structlog.get_logger().warning("waiting for the database", reason=str(error))
            await asyncio.sleep(DATABASE_SECONDS)
    return None


@asynccontextmanager
async def web_parts(config: WebConfig, store: AccessStore, token_command: str, meter: Meter) -> AsyncIterator[WebParts]:
    """Raises ConfigError if nobody could have a token; what waits to be audited at the end is still written."""
    await check_address(config.host, store, token_command)
    async with auditing(store.audit) as audit:
        yield WebParts(config, store, TokenCache(store.tokens), audit, meter, token_command)


async def check_address(host: str, store: AccessStore, token_command: str) -> None:
    """Raises ConfigError for an address that others can reach where nobody has a token."""
    if is_loopback(host) or any(token.is_valid(time()) for token in await store.tokens.list()):
        return
    raise ConfigError(
        f"this process would listen on {host} for other machines, and the database has no valid token; expected one; "
        f"make it with '{token_command} --scope read', or listen on 127.0.0.1"
    )
