"""The API as tests of its own folder have it: what every process with HTTP does is tried on one of them."""

from tests.api.conftest import api, database_kind, dispatcher, folder

__all__ = ["api", "database_kind", "dispatcher", "folder"]
