"""How old a click is when a model that has learnt from it answers a client, on a Ray cluster with Kafka and slow links.

    python -m tests.ray_freshness --rate 500 --seconds 60

Three nodes of Ray in network namespaces behind 500, 500 and 50 Mbit/s, a Kafka broker, and checkpoints in an object
store. ``freshet produce`` writes to the topic, ``freshet up --ray`` trains and serves, and a client asks all the time.
From an event's timestamp in the topic until the client first got an answer of a snapshot with the event's step, by the
client's clock. Needs Ray, Java, and the right to make network namespaces.
"""

import argparse
import asyncio
import signal
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil

from benchmarks.serving.freshness import SeenSnapshots, ages_of, asking, check_answers, step_ends
from infra.base.link_gbit import LinkGbit
from infra.run.network import namespaces
from infra.web.store.access import make_token
from infra.web.store.place import database_url
from ingest.kafka.clients.peek import peek
from ingest.kafka.config import KafkaConfig
from tests.end_to_end.processes import wait_until
from tests.end_to_end.test_ray import has_decided, options, store_and_broker
from tests.rays import LINKS_GBIT, ray_cluster

OWN = 1
"""The node of the supervisor and the server; the first one is Ray's head."""
BATCH = 256
SETTLED_STEPS = 30
LATE_SECONDS = 15.0
"""How long the client asks on for what was written last."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=500.0, help="events per second")
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    with TemporaryDirectory(prefix="ray", dir="/tmp") as temporary:  # paths of Ray's sockets must be short
        asked, ages = measure(Path(temporary), given.rate, given.seconds)
    p50, p99, worst = np.quantile(ages, (0.5, 0.99, 1.0))
    told = f"{len(ages):,} events: p50 {p50:.2f} s, p99 {p99:.2f} s, slowest {worst:.2f} s"
    sys.stdout.write(f"{told}; {len(asked.times):,} answers of {len(set(asked.snapshots))} snapshots\n")


def measure(place: Path, rate: float, seconds: float) -> tuple[SeenSnapshots, list[float]]:
    """What the client saw, and the age of each event that was written while it asked."""
    folder = place / "run"
    token = asyncio.run(make_token(database_url(None, place), "bench", ("predict", "read")))
    with ExitStack() as around:
        network = around.enter_context(namespaces([*map(LinkGbit.of, LINKS_GBIT)]))
        url, broker = around.enter_context(store_and_broker(place, network))
        broker.create("clicks", partitions=2)
        broker.create("dead-letters", partitions=1)
        cluster = around.enter_context(ray_cluster(place, network, head_cpus=0))
        own = f"{network.host.rpartition('.')[0]}.{OWN + 2}"
        kafka = {"stream__source": "kafka", "kafka__servers": broker.servers[0]}
        where = options(folder, checkpoints__url=url, checkpoints__kept=100_000, serving__host=own, **kafka)
        where[where.index("--no-api")] = "--serve"
        where += ["--set", f"stream.batch={BATCH}"]
        up = cluster.start("up", "--ray", cluster.address, *where, node=OWN)
        produce = ["produce", *kafka_options(broker.servers[0])]
        cluster.start(*produce, "--limit", str(SETTLED_STEPS * BATCH)).communicate()
        wait_until(lambda: has_decided(folder, SETTLED_STEPS), up)  # so that nothing waits when the client begins
        wait_until((folder / "endpoints" / "serve").exists, up)
        producing = cluster.start(*produce, "--rate", str(rate))
        address = (folder / "endpoints" / "serve").read_text().strip()
        with asking(address, token) as asked:
            time.sleep(seconds)
            for process in psutil.Process(producing.pid).children():
                process.send_signal(signal.SIGTERM)
            time.sleep(LATE_SECONDS)
        check_answers(asked)
        since, until = asked.times[0], asked.times[0] + seconds - 1.0
        appended = [(at, step) for at, step in trained(folder, broker.config()) if since <= at < until]
        (process,) = psutil.Process(up.pid).children()
        process.send_signal(signal.SIGTERM)
        up.communicate()
        producing.communicate()
    return asked, ages_of(appended, asked)


def kafka_options(server: str) -> list[str]:
    return ["--set", "stream.source=kafka", "--set", f"kafka.servers={server}"]


def trained(folder: Path, config: KafkaConfig) -> Iterator[tuple[float, int]]:
    """Timestamp and step of every trained event; one record is one event here."""
    for partition, places in step_ends(folder).items():
        offsets = [end for end, _ in places]
        for record in peek(config, "clicks", {partition: (0, offsets[-1])}):
            yield record.timestamp / 1000, places[bisect_left(offsets, record.offset + 1)][1]


if __name__ == "__main__":
    main()
