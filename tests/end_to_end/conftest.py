"""Topics of generated clicks, written once and read by many tests."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from infra.base.process import Stop
from ingest.config import StreamConfig
from ingest.main import ProducerJob, run_producer

WriteTopic = Callable[..., Path]
_folders: list[Path] = []
"""Where topics are written once; empty before the first test."""


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _folder_of_topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder in pytest's own: if this process is killed, a later run of pytest removes it."""
    _folders.append(tmp_path_factory.mktemp("clicks"))
    yield
    shutil.rmtree(_folders.pop())
    _clicks.cache_clear()


def write_clicks(folder: Path, samples: int, partitions: int = 2, packed: int = 0, poison: float = 0.0) -> Path:
    """Writes synthetic clicks to a topic below a folder and returns the folder.

    New topics that are equal are the same, byte for byte: what one test has decoded need not be decoded by the next.
    """
    if (folder / "log").exists():
        _produce(folder / "log", samples, partitions, packed, poison)
    else:
        shutil.copytree(_clicks(samples, partitions, packed, poison), folder / "log")
    return folder


@cache
def _clicks(samples: int, partitions: int, packed: int, poison: float) -> Path:
    """A log, written once by every process that runs tests."""
    folder = Path(tempfile.mkdtemp(dir=_folders[-1]))
    _produce(folder, samples, partitions, packed, poison)
    return folder


def _produce(log: Path, samples: int, partitions: int, packed: int, poison: float) -> None:
    config = StreamConfig(folder=log, partitions=partitions)
    run_producer(ProducerJob(config, limit=samples, samples_per_record=packed, poison_share=poison, seed=3), Stop())


@pytest.fixture
def write_topic(tmp_path: Path) -> WriteTopic:
    """Writes synthetic clicks to a topic in a new folder and returns the folder."""

    def write(samples: int, name: str = "run", **more: Any) -> Path:
        return write_clicks(tmp_path / name, samples, **more)

    return write
