"""What a process needs before it may be served to others."""

import asyncio
from pathlib import Path

import pytest

from infra.base.errors import ConfigError
from infra.web.parts import check_address
from infra.web.store.access import AccessStore


def test_other_machines_are_served_only_where_there_is_a_token(tmp_path: Path) -> None:
    async def check() -> None:
        store = await AccessStore.open(f"sqlite:///{tmp_path / 'freshet.db'}")
        await check_address("127.0.0.1", store, "freshet token create")
        with pytest.raises(ConfigError, match="freshet token create"):
            await check_address("0.0.0.0", store, "freshet token create")
        await store.tokens.create("ann", ["read"])
        await check_address("0.0.0.0", store, "freshet token create")
        await store.close()

    asyncio.run(check())
