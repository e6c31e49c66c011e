"""What every process with HTTP needs before its own parts: a database, tokens, the audit trail and metrics."""

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
"""Time between two attempts to open the database."""


@dataclass(frozen=True)
class WebParts:
    """The parts that every process with HTTP has."""

    config: WebConfig
    store: AccessStore
    tokens: TokenCache
    audit: AuditQueue
    meter: Meter
    token_command: str
    """The command that makes a token for this process, without the scope."""


@asynccontextmanager
async def opened_store(kind: type[StoreT], url: str, stop: Stop) -> AsyncIterator[StoreT | None]:
    """Opens the database, and waits while it is unreachable; yields None if a stop is requested meanwhile."""
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
    """Opens the parts; raises ConfigError if nobody could have a token. Waiting audit entries are written on exit."""
    await check_address(config.host, store, token_command)
    async with auditing(store.audit) as audit:
        yield WebParts(config, store, TokenCache(store.tokens), audit, meter, token_command)


async def check_address(host: str, store: AccessStore, token_command: str) -> None:
    """Raises ConfigError if other machines can reach the address and there is no valid token."""
    if is_loopback(host) or any(token.is_valid(time()) for token in await store.tokens.list()):
        return
    raise ConfigError(
        f"this process would listen on {host} for other machines, and the database has no valid token; expected one; "
        f"make it with '{token_command} --scope read', or listen on 127.0.0.1"
    )
