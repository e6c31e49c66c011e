"""The servers that the tests of the API and of serving use, for a client that knows only their addresses."""

from tests.api.conftest import api, database_kind, dispatcher, folder
from tests.serving.conftest import run, server

__all__ = ["api", "database_kind", "dispatcher", "folder", "run", "server"]
