"""Runs on a Ray cluster behind links of 500 and 50 Mbit/s go on while actors, nodes and Ray's head are lost, and when
the node that has their journal is.
"""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
import structlog

from dispatch.journal.history import JOURNAL, read_history
from infra.base.link_gbit import LinkGbit
from infra.base.process import Stop
from infra.run.network import Network, namespaces
from ingest.config import StreamConfig
from ingest.kafka.config import KafkaConfig
from ingest.main import ProducerJob, run_producer
from tests.brokers import TestBroker, running_broker
from tests.buckets import running_store
from tests.end_to_end.processes import run, wait_until
from tests.infra.run.allowed import NEEDED, can_make_namespaces
from tests.rays import LINKS_GBIT, actor_of, processes_in, ray_cluster, words_of

BATCH = 64
STEPS = 10
"""Steps before each strike."""
STRUCK = ("worker-0", "ps-1", "dispatcher")
SMALL = {"stream.batch": BATCH, "stream.linger_seconds": 0.1, "model.mlp": 8, "dispatch.workers": 3}
HEAD, OWN, CUT_OFF, LOST = range(4)
"""Nodes of the larger cluster: Ray's head alone, the supervisor's, one that is cut off, one that is lost."""
JOURNAL_TOPIC = "journal"
FOUR_LINKS_GBIT = (LINKS_GBIT[0], *LINKS_GBIT)
FOUR_LABELS = ("", "", "", "freshet-role=edge,freshet-link-mbit=50")

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install freshet[ray]")
needs_namespaces = pytest.mark.skipif(not can_make_namespaces(), reason=NEEDED)


def produce(stream: StreamConfig, kafka: KafkaConfig | None = None) -> None:
    """The events of as many steps."""
    run_producer(ProducerJob(stream, kafka or KafkaConfig(), limit=BATCH * STEPS), Stop())


def has_decided(folder: Path, steps: int) -> bool:
    return read_history(folder / JOURNAL).step >= steps


def options(folder: Path, **more: Any) -> list[str]:
    """Of a small run; more: settings, with __ for a dot."""
    settings = {**SMALL, "checkpoints.seconds": 3, **{name.replace("__", "."): value for name, value in more.items()}}
    given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return [*given, "--run", str(folder), "--no-api"]


@needs_ray
@needs_namespaces
@pytest.mark.timeout(900)
def test_killed_actors_come_back_and_the_run_equals_the_replay_of_its_journal() -> None:
    with TemporaryDirectory(prefix="ray", dir="/tmp") as temporary:  # paths of Ray's sockets must be short
        place = Path(temporary)
        stream = StreamConfig(folder=place / "log")
        where = options(place / "run", stream__folder=stream.folder, checkpoints__url=place / "checkpoints")
        with namespaces([*map(LinkGbit.of, LINKS_GBIT)]) as network, ray_cluster(place, network) as cluster:
            samples = ["--samples", str(BATCH * STEPS * (len(STRUCK) + 1))]
            up = cluster.start("up", "--ray", cluster.address, *where, *samples)
            for strikes, name in enumerate(STRUCK, start=1):
                produce(stream)
                wait_until(partial(has_decided, place / "run", STEPS * strikes), up)
                actor_of(name).kill()
            produce(stream)
            said = up.communicate()[0]
            assert up.returncode == 0, said
        assert all(f"{name} was restarted" in said for name in STRUCK), said
        checked = run("verify", "--run", place / "run")
        assert checked.returncode == 0, checked.stdout


@contextmanager
def store_and_broker(place: Path, network: Network) -> Iterator[tuple[str, TestBroker]]:
    """An object store and a broker that all nodes reach."""
    with ExitStack() as around:
        (place / "store").mkdir()
        url = around.enter_context(running_store(place / "store", network.host))
        broker = around.enter_context(running_broker(place / "broker", host=network.host))
        yield url, TestBroker((broker.address,))


def runs_in(network: Network, node: int) -> list[psutil.Process]:
    """Processes of the run on a node."""
    return [each for each in processes_in(network, node) if "infra.cli.entry" in words_of(each)]


class Struck:
    """A run that goes on after each blow; how long that took is told by the test's log."""

    def __init__(self, folder: Path, stream: StreamConfig, kafka: KafkaConfig) -> None:
        self.folder = folder
        self._stream = stream
        self._kafka = kafka
        self.steps = 0

    def train(self, up: "subprocess.Popen[str]", after: str, began: float | None = None) -> None:
        """Waits until as many more steps are decided, with events that are written now; began: when the blow fell."""
        self.steps += STEPS
        began = began or time.monotonic()
        produce(self._stream, self._kafka)
        wait_until(partial(has_decided, self.folder, self.steps), up)
        took = time.monotonic() - began
        structlog.get_logger().info("trained on", steps=STEPS, after=after, seconds=round(took, 1))


@needs_ray
@needs_namespaces
@pytest.mark.timeout(1800)
def test_a_run_goes_on_without_a_node_or_the_head_and_is_resumed_on_a_new_cluster() -> None:
    with TemporaryDirectory(prefix="ray", dir="/tmp") as temporary, ExitStack() as around:
        place = Path(temporary)
        network = around.enter_context(namespaces([*map(LinkGbit.of, FOUR_LINKS_GBIT)]))
        url, broker = around.enter_context(store_and_broker(place, network))
        broker.create("clicks", partitions=2)
        broker.create("dead-letters", partitions=1)
        (address,) = broker.servers
        kept = {"checkpoints__url": url, "dispatch__journal_topic": JOURNAL_TOPIC}
        where = options(place / "run", stream__source="kafka", kafka__servers=address, **kept)
        struck = Struck(place / "run", StreamConfig(source="kafka"), broker.config())
        with ray_cluster(place, network, FOUR_LABELS, head_cpus=0) as cluster:
            up = cluster.start("up", "--ray", cluster.address, *where, node=OWN)
            struck.train(up, "the start")
            assert runs_in(network, LOST)
            cluster.kill_node(LOST)
            struck.train(up, "the loss of a node")
            assert runs_in(network, CUT_OFF)
            with cluster.cut_off(CUT_OFF):
                struck.train(up, "the cut")
                assert runs_in(network, CUT_OFF), "they do not know that they were given up"
            wait_until(lambda: not runs_in(network, CUT_OFF), up)
            cluster.kill_node(HEAD)
            struck.train(up, "the loss of the head")
            (process,) = psutil.Process(up.pid).children()
            process.send_signal(signal.SIGTERM)
            said = up.communicate()[0]
            assert up.returncode == 0, said
        with ray_cluster(place, network, FOUR_LABELS, head_cpus=0) as cluster:
            up = cluster.start("up", "--ray", cluster.address, "--run", place / "run", "--no-api", node=OWN)
            struck.train(up, "the start of another cluster")
            before, lost_at = read_history(place / "run" / JOURNAL), time.monotonic()
            cluster.kill_node(OWN)
            up.communicate()
            struck.folder = place / "elsewhere"
            given = f"kafka.servers={address}", f"dispatch.journal_topic={JOURNAL_TOPIC}"
            more = [word for setting in given for word in ("--set", setting)]
            more += ["--no-api", "--samples", str(BATCH * (struck.steps + STEPS))]
            up = cluster.start("up", "--restore", "--ray", cluster.address, "--run", struck.folder, *more, node=CUT_OFF)
            struck.train(up, "the loss of the supervisor's node", lost_at)
            said = up.communicate()[0]
            assert up.returncode == 0, said
        assert read_history(struck.folder / JOURNAL).step == before.step + STEPS
        checked = run("verify", "--run", struck.folder)
        assert checked.returncode == 0, checked.stdout
