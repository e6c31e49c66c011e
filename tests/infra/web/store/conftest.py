"""Every test of the store runs on both databases."""

from tests.api.store.conftest import database

__all__ = ["database"]
