"""Topics of generated clicks, written once and read by many tests."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from infra.process import Stop
from ingest.config import StreamConfig
from ingest.main import ProducerJob, run_producer

WriteTopic = Callable[..., Path]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def write_topic(tmp_path: Path) -> WriteTopic:
    """Writes synthetic clicks to a topic in a new folder and returns the folder."""

    def write(samples: int, name: str = "run", partitions: int = 2, packed: int = 0, poison: float = 0.0) -> Path:
        folder = tmp_path / name
        config = StreamConfig(folder=folder / "log", partitions=partitions)
        job = ProducerJob(config, limit=samples, samples_per_record=packed, poison_share=poison, seed=3)
        run_producer(job, Stop())
        return folder

    return write
