"""Settings of the connection to Kafka, and their names in the two client libraries.

Secrets come from a file or the environment. They are never logged or stored: a run's folder keeps only the names of
files, and the processes of a run inherit the environment. A server's name is always checked against its certificate.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from infra.base.config import Section
from infra.base.errors import ConfigError

Client = Literal["kafka-python", "confluent-kafka"]
Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SECRETS = ("password", "key_password")
"""Fields that are omitted wherever settings are shown or stored."""


class KafkaConfig(Section):
    """The ``[kafka]`` section."""

    servers: tuple[str, ...] = ("127.0.0.1:9092",)
    """Brokers to connect to first, each host:port. FRESHET_KAFKA in the environment is short for it."""
    own_broker: bool = False
    """Whether the run starts its own broker, in its folder; --kafka sets it if FRESHET_KAFKA names no broker."""
    client: Client = "kafka-python"
    """Client library; confluent-kafka comes with the extra 'kafka-fast'."""
    client_id: str = "freshet"
    """Name of this client in the broker's logs and quotas."""
    group: str = "freshet"
    """Consumer group whose committed offsets show how far a run has read; Freshet never reads them back."""
    protocol: Protocol = "PLAINTEXT"
    """Security of the connection; SSL and SASL_SSL are encrypted."""
    mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = "SCRAM-SHA-512"
    """How a SASL protocol proves the password."""
    username: str | None = None
    """User of a SASL protocol."""
    password: SecretStr | None = Field(default=None, exclude=True)
    """The user's password; better in password_file, or in the environment as FRESHET_KAFKA__PASSWORD."""
    password_file: Path | None = None
    """File whose first line is the password."""
    ca_file: Path | None = None
    """PEM file of the certificate authorities trusted for brokers; not set: the system's."""
    cert_file: Path | None = None
    """PEM file of this client's own certificate, if the broker requires one (mTLS)."""
    key_file: Path | None = None
    """PEM file of that certificate's private key."""
    key_password: SecretStr | None = Field(default=None, exclude=True)
    """Password of the private key; better in key_password_file or FRESHET_KAFKA__KEY_PASSWORD."""
    key_password_file: Path | None = None
    """File whose first line is the private key's password."""
    request_seconds: float = Field(default=30.0, ge=1, le=600)
    """How long one request to a broker may take."""
    outage_seconds: float | None = Field(default=None, ge=0)
    """How long brokers may be unreachable, after the first contact, before the run stops. Not set: it waits forever."""
    compression: Literal["none", "lz4", "zstd"] = "lz4"
    """Compression of records on their way to the broker and in its log."""
    delivery_seconds: float = Field(default=120.0, ge=1, le=3600)
    """How long a record may wait for the broker's acknowledgement before writing it counts as failed."""
    check_events: bool = True
    """Whether a run starts only if the topic is empty or holds some events that fit the schema."""
    fetch_bytes: int = Field(default=8 << 20, ge=1024, le=1 << 30)
    """Most bytes that a broker sends in one answer; at most a quarter of them from one partition."""
    buffer_bytes: int = Field(default=4 << 20, ge=1024)
    """Bytes kept ready per partition; beyond that it is paused until half of them are used."""

    @field_validator("servers")
    @classmethod
    def check_servers(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        for server in servers:
            host, colon, port = server.rpartition(":")
            if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
                raise ConfigError(f"Kafka server {server!r} is not an address; expected host:port; correct it")
        if not servers:
            raise ConfigError("no Kafka server is given; expected at least one host:port; name one")
        return servers

    @model_validator(mode="after")
    def check_security(self) -> "KafkaConfig":
        if self.username is not None and not self.uses_sasl:
            raise ConfigError(
                f"kafka.username is set, but protocol {self.protocol} does not log in; expected SASL_SSL or "
                "SASL_PLAINTEXT; set kafka.protocol, or unset the user"
            )
        encrypts = self.protocol in ("SSL", "SASL_SSL")
        if (self.ca_file or self.cert_file) is not None and not encrypts:
            raise ConfigError(
                f"kafka.ca_file or kafka.cert_file is set, but protocol {self.protocol} is not encrypted; expected SSL "
                "or SASL_SSL; set kafka.protocol, or unset the files"
            )
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigError(
                f"kafka.cert_file = {self.cert_file} and kafka.key_file = {self.key_file}; expected both or neither; "
                "set the other"
            )
        return self

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL")


def kafka_python_arguments(config: KafkaConfig) -> dict[str, Any]:
    """Keyword arguments of any kafka-python client; a consumer or producer adds its own."""
    arguments: dict[str, Any] = {
        "bootstrap_servers": list(config.servers),
        "client_id": config.client_id,
        "security_protocol": config.protocol,
        "ssl_check_hostname": True,
        "ssl_cafile": _path(config.ca_file, "ca_file"),
        "ssl_certfile": _path(config.cert_file, "cert_file"),
        "ssl_keyfile": _path(config.key_file, "key_file"),
        "ssl_password": key_password_of(config),
        "request_timeout_ms": round(1000 * config.request_seconds),
    }
    if config.uses_sasl:
        user, password = login_of(config)
        arguments |= {
            "sasl_mechanism": config.mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": password,
        }
    return arguments


def confluent_arguments(config: KafkaConfig) -> dict[str, Any]:
    """The configuration of any confluent-kafka client; a consumer or producer adds its own."""
    arguments: dict[str, Any] = {
        "bootstrap.servers": ",".join(config.servers),
        "client.id": config.client_id,
        "security.protocol": config.protocol,
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.ca.location": _path(config.ca_file, "ca_file"),
        "ssl.certificate.location": _path(config.cert_file, "cert_file"),
        "ssl.key.location": _path(config.key_file, "key_file"),
        "ssl.key.password": key_password_of(config),
        "socket.timeout.ms": round(1000 * config.request_seconds),
    }
    if config.uses_sasl:
        user, password = login_of(config)
        arguments |= {"sasl.mechanism": config.mechanism, "sasl.username": user, "sasl.password": password}
    return {name: value for name, value in arguments.items() if value is not None}


def login_of(config: KafkaConfig) -> tuple[str, str]:
    """User and password of a SASL protocol; raises ConfigError if one is missing."""
    password = _secret(config.password, config.password_file, "password_file")
    if not config.username or not password:
        raise ConfigError(
            f"cannot log in to Kafka over {config.protocol}: kafka.username is {config.username!r}, the password is "
            f"{'set' if password else 'missing'}; expected both; set kafka.username and kafka.password_file (or "
            "FRESHET_KAFKA__PASSWORD)"
        )
    return config.username, password


def key_password_of(config: KafkaConfig) -> str | None:
    return _secret(config.key_password, config.key_password_file, "key_password_file")


def _secret(given: SecretStr | None, file: Path | None, name: str) -> str | None:
    if given is not None:
        return given.get_secret_value()
    if file is None:
        return None
    path = _path(file, name)
    lines = Path(str(path)).read_text(encoding="utf-8").splitlines()
    return lines[0].strip() if lines else ""


def _path(file: Path | None, name: str) -> str | None:
    if file is not None and not file.is_file():
        raise ConfigError(f"kafka.{name} = {file} is not a file; expected one that can be read; correct the path")
    return None if file is None else str(file)
