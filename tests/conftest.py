"""Shared by all tests: hypothesis without deadlines, since the first call of a numba kernel compiles it; one broker."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.brokers import TestBroker, shared_broker

settings.register_profile("freshet", deadline=None)
settings.load_profile("freshet")

DOWNLOAD_SECONDS = 600
"""the first test that needs the broker may have to fetch it"""


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBroker]:
    """A real Kafka broker. Skips without Java and Maven, and fails where they are there and it does not start."""
    with shared_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "kafka" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(DOWNLOAD_SECONDS))
            break
