"""A run on a Ray cluster of three nodes behind links of 500, 500 and 50 Mbit/s: actors are killed, and it goes on."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dispatch.journal.history import JOURNAL, read_history
from infra.base.process import Stop
from ingest.config import StreamConfig
from ingest.kafka.config import KafkaConfig
from ingest.main import ProducerJob, run_producer
from tests.end_to_end.processes import run, wait_until
from tests.infra.run.allowed import NEEDED, can_make_namespaces
from tests.rays import actor_of, ray_cluster

BATCH = 64
STEPS = 10
"""Steps before each strike."""
STRUCK = ("worker-0", "ps-1", "dispatcher")


def produce(folder: Path) -> None:
    """The events of as many steps."""
    run_producer(ProducerJob(StreamConfig(folder=folder), KafkaConfig(), limit=BATCH * STEPS), Stop())


def has_decided(folder: Path, steps: int) -> bool:
    return read_history(folder / JOURNAL).step >= steps


def options(place: Path) -> list[str]:
    small = {"stream.batch": BATCH, "stream.linger_seconds": 0.1, "model.mlp": 8, "dispatch.workers": 3}
    where = {"stream.folder": place / "log", "checkpoints.url": place / "checkpoints", "checkpoints.seconds": 3}
    given = [word for name, value in (small | where).items() for word in ("--set", f"{name}={value}")]
    return [*given, "--run", str(place / "run"), "--samples", str(BATCH * STEPS * (len(STRUCK) + 1))]


@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install freshet[ray]")
@pytest.mark.skipif(not can_make_namespaces(), reason=NEEDED)
@pytest.mark.timeout(900)
def test_killed_actors_come_back_and_the_run_equals_the_replay_of_its_journal() -> None:
    with TemporaryDirectory(prefix="ray", dir="/tmp") as temporary:  # paths of Ray's sockets must be short
        place = Path(temporary)
        with ray_cluster(place) as cluster:
            up = cluster.start("up", "--ray", cluster.address, "--no-api", *options(place))
            for strikes, name in enumerate(STRUCK, start=1):
                produce(place / "log")
                wait_until(partial(has_decided, place / "run", STEPS * strikes), up)
                actor_of(name).kill()
            produce(place / "log")
            said = up.communicate()[0]
            assert up.returncode == 0, said
        assert all(f"{name} was restarted" in said for name in STRUCK), said
        checked = run("verify", "--run", place / "run")
        assert checked.returncode == 0, checked.stdout
