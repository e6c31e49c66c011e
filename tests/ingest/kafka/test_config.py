from pathlib import Path

import pytest
from pydantic import ValidationError

from infra.base.errors import ConfigError
from ingest.kafka.config import KafkaConfig, confluent_arguments, kafka_python_arguments


@pytest.fixture
def secure(tmp_path: Path) -> KafkaConfig:
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).touch()
    (tmp_path / "password").write_text("opensesame\n")
    return KafkaConfig(
        servers=("a:9093", "b:9093"),
        protocol="SASL_SSL",
        username="alice",
        password_file=tmp_path / "password",
        ca_file=tmp_path / "ca.pem",
        cert_file=tmp_path / "cert.pem",
        key_file=tmp_path / "key.pem",
    )


def test_kafka_python_gets_the_login_the_files_and_the_host_name_check(secure: KafkaConfig) -> None:
    arguments = kafka_python_arguments(secure)
    assert arguments["bootstrap_servers"] == ["a:9093", "b:9093"]
    assert (arguments["sasl_mechanism"], arguments["sasl_plain_username"]) == ("SCRAM-SHA-512", "alice")
    assert arguments["sasl_plain_password"] == "opensesame"
    assert arguments["ssl_check_hostname"] is True
    assert arguments["ssl_cafile"] == str(secure.ca_file)


def test_confluent_gets_the_same(secure: KafkaConfig) -> None:
    arguments = confluent_arguments(secure)
    assert arguments["bootstrap.servers"] == "a:9093,b:9093"
    assert (arguments["sasl.mechanism"], arguments["sasl.username"]) == ("SCRAM-SHA-512", "alice")
    assert arguments["sasl.password"] == "opensesame"
    assert arguments["ssl.endpoint.identification.algorithm"] == "https"
    assert arguments["ssl.certificate.location"] == str(secure.cert_file)


def test_a_plain_connection_logs_in_nowhere() -> None:
    assert "sasl_mechanism" not in kafka_python_arguments(KafkaConfig())
    assert "sasl.mechanism" not in confluent_arguments(KafkaConfig())


def test_a_missing_password_is_reported_before_anything_connects() -> None:
    config = KafkaConfig(protocol="SASL_SSL", username="alice")
    with pytest.raises(ConfigError, match=r"'alice', the password is missing.*kafka\.password_file"):
        kafka_python_arguments(config)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"servers": ("nowhere",)}, "'nowhere' is not an address"),
        ({"servers": ()}, "no Kafka server"),
        ({"username": "alice"}, "PLAINTEXT does not log in"),
        ({"ca_file": "ca.pem"}, "PLAINTEXT is not encrypted"),
        ({"protocol": "SSL", "cert_file": "cert.pem"}, "expected both or neither"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        KafkaConfig.model_validate(values)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    config = KafkaConfig(protocol="SSL", ca_file=tmp_path / "no.pem")
    with pytest.raises(ConfigError, match=r"kafka\.ca_file = .*no\.pem is not a file"):
        confluent_arguments(config)
