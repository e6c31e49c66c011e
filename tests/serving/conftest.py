"""One server of a run that trains no more, shared by the tests of a module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.serving import Served
from tests.serving.server import serving
from tests.serving.trained import Trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Three checkpoints, of which the second is held back."""
    trained = Trained(tmp_path_factory.mktemp("served") / "checkpoints")
    trained.train().take()
    trained.train().take("logloss 0.9")
    trained.train().take()
    return trained


@pytest.fixture(scope="module")
def server(run: Trained) -> Iterator[Served]:
    with serving(run, request_samples=100) as served:
        yield served


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"
