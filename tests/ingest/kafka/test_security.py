"""A real broker with TLS, a login and client certificates: it accepts the right credentials and no others."""

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.base.process import Stop
from infra.kafka.broker import HOST, Broker
from ingest.batches.job import LoaderJob
from ingest.batches.loader import Loader
from ingest.config import StreamConfig
from ingest.errors import BrokerError
from ingest.kafka.access import check_access
from ingest.kafka.clients.confluent import ConfluentProducer
from ingest.kafka.config import Client, KafkaConfig
from ingest.kafka.letter_topic import KafkaLetters, read_kafka_letters
from ingest.kafka.source import KafkaSource
from ingest.kafka.topics import check_stream, ensure_topics
from ingest.main import ProducerJob, run_producer
from tests.brokers import running_broker
from tests.certificates import KEY_PASSWORD, Authority
from tests.end_to_end.processes import ROOT
from tests.ingest.kafka.test_letter_topic import letter
from tests.ingest.kafka.test_sink import CLIENTS
from tests.ingest.topics import SYNTHETIC, drain

PASSWORD = "correct-horse-battery"
ANSWER_SECONDS = 60.0
"""far above what a busy broker takes for an answer"""
LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
LISTENERS = {"LOGIN": "SASL_SSL", "MUTUAL": "SSL", "MISNAMED": "SSL"}


@dataclass(frozen=True)
class SecuredBroker:
    """The broker, and the credentials of its clients."""

    broker: Broker
    folder: Path

    def config(self, listener: str, client: Client = "kafka-python", **values: Any) -> KafkaConfig:
        right = {"servers": (self.broker.address_of(listener),), "client": client, "request_seconds": 10.0}
        return KafkaConfig(**(right | values))

    def login(self, client: Client = "kafka-python", **values: Any) -> KafkaConfig:
        right = {
            "protocol": "SASL_SSL",
            "username": "alice",
            "password": PASSWORD,
            "ca_file": self.folder / "authority.pem",
        }
        return self.config("LOGIN", client, **(right | values))

    def mutual(self, client: Client = "kafka-python", **values: Any) -> KafkaConfig:
        files = {"cert_file": self.folder / "client.pem", "key_file": self.folder / "client.key"}
        right = {"protocol": "SSL", "ca_file": self.folder / "authority.pem", "key_password": KEY_PASSWORD, **files}
        return self.config("MUTUAL", client, **(right | values))


def tls_of(listener: str, folder: Path, name: str) -> Mapping[str, str]:
    prefix = f"listener.name.{listener.lower()}.ssl"
    return {
        f"{prefix}.keystore.type": "PEM",
        f"{prefix}.keystore.location": str(folder / f"{name}.store"),
        f"{prefix}.truststore.type": "PEM",
        f"{prefix}.truststore.location": str(folder / "authority.pem"),
    }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    folder = tmp_path_factory.mktemp("secured")
    authority, other = Authority(folder, "authority"), Authority(folder, "other")
    authority.issue("server", HOST)
    authority.issue("misnamed", "elsewhere.example")
    authority.issue("client", password=KEY_PASSWORD)
    other.issue("stranger")
    properties = {
        **tls_of("LOGIN", folder, "server"),
        **tls_of("MUTUAL", folder, "server"),
        **tls_of("MISNAMED", folder, "misnamed"),
        "listener.name.mutual.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.login.scram-sha-512.sasl.jaas.config": LOGIN,
    }
    with running_broker(
        folder / "broker", listeners=LISTENERS, properties=properties, scram={"alice": PASSWORD}
    ) as broker:
        yield SecuredBroker(broker, folder)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("way", ["login", "mutual"])
def test_the_right_credentials_work_from_end_to_end(secured: SecuredBroker, client: Client, way: str) -> None:
    config: KafkaConfig = getattr(secured, way)(client)
    stream = StreamConfig(source="kafka", topic=f"{way}-{client}", dead_letter_topic=f"{way}-{client}-letters")
    ensure_topics(config, stream)
    assert run_producer(ProducerJob(stream, config, limit=50), Stop()).records == 50
    check_stream(config, stream, SYNTHETIC)
    with closing(KafkaSource(config, stream.topic)) as source:
        loader = Loader(source, LoaderJob(SYNTHETIC, 50, stop_at_end=True))
        assert sum(len(batch.samples) for batch in drain(loader)) == 50
    letters = KafkaLetters(config, stream.dead_letter_topic, stream.topic, stream.topic)
    assert letters.append([letter(0, 1)]) == 1
    letters.close()
    assert len(list(read_kafka_letters(config, stream.dead_letter_topic))) == 1


def wrong_credentials(secured: SecuredBroker) -> dict[str, tuple[KafkaConfig, str]]:
    """Clients that must be refused, and the message of each refusal."""
    files, address = secured.folder, secured.broker.address
    stranger: dict[str, Any] = {
        "cert_file": files / "stranger.pem",
        "key_file": files / "stranger.key",
        "key_password": None,
    }
    trusting: dict[str, Any] = {"protocol": "SSL", "ca_file": files / "authority.pem"}
    return {
        "password": (secured.login(password="wrong-horse"), r"refuses the login of 'alice'.*invalid credentials"),
        "user": (secured.login(username="mallory"), r"refuses the login of 'mallory'"),
        "mechanism": (secured.login(mechanism="PLAIN"), r"does not know PLAIN; it offers SCRAM-SHA-512"),
        "authority": (secured.login(ca_file=files / "other.pem"), r"not trusted \(unable to get local issuer"),
        "no authority": (secured.login(ca_file=None), r"not trusted .*signed by the system's authorities"),
        "host name": (secured.config("MISNAMED", **trusting), r"not trusted \(IP address mismatch"),
        "plaintext": (secured.config("LOGIN"), r"does not accept this connection.*kafka\.protocol = PLAINTEXT"),
        "TLS where none is": (
            secured.login(servers=(address,)),
            r"no secure connection.*expected a listener with TLS",
        ),
        "no login": (
            secured.config("LOGIN", **trusting),
            r"does not accept this connection: it closes the connection",
        ),
        "no certificate": (secured.config("MUTUAL", **trusting), r"expected a client certificate.*client has none"),
        "strange certificate": (secured.mutual(**stranger), r"kafka\.cert_file is not accepted"),
        "locked key": (secured.mutual(key_password="guess"), r"client\.pem.* cannot be used"),
    }


REFUSED = (
    *("password", "user", "mechanism", "authority", "no authority", "host name", "plaintext", "TLS where none is"),
    *("no login", "no certificate", "strange certificate", "locked key"),
)


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_credentials_are_refused_at_once_with_the_reason_and_without_a_secret(
    secured: SecuredBroker, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: at the first attempt, where the libraries would retry until their time is over."""
    config, expected = wrong_credentials(secured)[case]
    attempts, connect = list[Any](), socket.create_connection

    def note(*arguments: Any) -> socket.socket:
        attempts.append(arguments)
        return connect(*arguments)

    monkeypatch.setattr("socket.create_connection", note)
    with pytest.raises(BrokerError, match=expected) as refused:
        check_access(config, ANSWER_SECONDS)
    assert len(attempts) == 1
    secrets = (PASSWORD, "wrong-horse", KEY_PASSWORD, "guess")
    assert not any(secret in str(refused.value) for secret in secrets)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("case", ["password", "authority", "host name", "plaintext", "no certificate"])
def test_nobody_writes_with_wrong_credentials(secured: SecuredBroker, case: str, client: Client) -> None:
    config, expected = wrong_credentials(secured)[case]
    stream = StreamConfig(source="kafka", topic="closed")
    with pytest.raises(BrokerError, match=expected):
        run_producer(ProducerJob(stream, config.model_copy(update={"client": client}), limit=1), Stop())


TRY = """
import sys
from ingest.kafka.config import KafkaConfig
from ingest.kafka.clients.kafka_python import KafkaPythonProducer
KafkaPythonProducer(KafkaConfig.model_validate_json(sys.argv[1]), "closed")
"""


@pytest.mark.parametrize(("listener", "authority"), [("LOGIN", "other"), ("MISNAMED", "authority")])
def test_the_libraries_themselves_trust_no_false_broker(secured: SecuredBroker, listener: str, authority: str) -> None:
    config = secured.config(listener, protocol="SSL", ca_file=secured.folder / f"{authority}.pem", request_seconds=1)
    tried = subprocess.run(
        [sys.executable, "-c", TRY, config.model_dump_json()], cwd=ROOT, capture_output=True, text=True
    )
    assert "Unable to bootstrap" in tried.stderr
    confluent = ConfluentProducer(config, "closed")
    confluent.send(0, None, b"secret event")
    assert not confluent.flush(1.0)
    confluent.close()


@pytest.mark.parametrize("case", ["password", "authority", "plaintext"])
def test_a_run_does_not_start_with_wrong_credentials(secured: SecuredBroker, case: str) -> None:
    config, expected = wrong_credentials(secured)[case]
    with pytest.raises(BrokerError, match=expected):
        check_stream(config, StreamConfig(source="kafka"), SYNTHETIC)


def test_every_wrong_case_is_tried(secured: SecuredBroker) -> None:
    assert set(wrong_credentials(secured)) == set(REFUSED)
