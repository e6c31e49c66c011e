"""A run's own Kafka broker: where it listens, and who starts it.

``freshet up --kafka`` and ``freshet demo --kafka`` start a broker with the run if FRESHET_KAFKA names none. That is the
setting ``kafka.own_broker``, which is stored with the run: a resumed run starts its broker again, and so does a replay
or check of a run that is not under way. Its events are in the run's folder, below ``broker/``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.base.errors import ConfigError
from infra.kafka.broker import HOST, Broker, free_port, is_free
from infra.kafka.jars import find_java, kafka_jars
from infra.run.folder import check_free
from infra.run.settings import KAFKA, Settings, names_brokers, read_stored

FOLDER = "broker"
"""Name of the folder in the run's folder."""


def with_brokers(settings: Settings, is_asked: bool) -> tuple[Settings, int | None]:
    """Settings that name the brokers of a run, and the port of the one to start with it; None: none is started.

    is_asked: whether a new run requests Kafka with --kafka.
    """
    has_own = settings.kafka.own_broker
    if not (has_own or is_asked):
        return settings, None
    check_free(settings.folder)  # before topics are created for a run that is then refused
    if has_own and names_brokers():
        raise ConfigError(
            f"the events of the run in {settings.folder} are on a broker of its own, and {KAFKA} names others; "
            f"expected one of them; unset {KAFKA}, or give another folder with --run"
        )
    if names_brokers():
        from ingest.kafka.topics import ensure_topics  # a run without Kafka does not load its client

        ensure_topics(settings.kafka, settings.stream)
        return settings, None
    find_java()
    kafka_jars()  # now: a missing program is an error before the start, and a download does not delay it
    known = _port_of(settings)
    port = known if has_own and is_free(known) else free_port()
    own = {"servers": (f"{HOST}:{port}",), "protocol": "PLAINTEXT", "own_broker": True}
    return settings.model_copy(update={"kafka": settings.kafka.model_copy(update=own)}), port


@contextmanager
def answering(folder: Path) -> Iterator[None]:
    """Inside, the own broker of the run in a folder answers at its address; does nothing for a run without one.

    The run must not be under way, and must stay so. Raises an error of ours if the broker cannot be started.
    """
    settings = read_stored(folder)
    if not settings.kafka.own_broker:
        yield
        return
    with Broker(folder / FOLDER, port=_port_of(settings)):
        yield


def _port_of(settings: Settings) -> int:
    return int(settings.kafka.servers[0].rpartition(":")[2])
