"""Checks access to a broker with one explicit connection, to find out at once which setting is wrong.

The client libraries retry until they time out, and then report that nobody answered. This makes one connection the way
they would: 1. TCP 2. TLS, with the broker's name checked against its certificate 3. the login 4. one request that a
broker answers only to clients it has accepted. A fault shows at its own step, without a retry. No message contains a
secret: the broker's own message is passed on, and it never repeats a password.
"""

import socket
import ssl
import struct
from typing import Any

from ingest.errors import BrokerError
from ingest.kafka.clients.kafka_python import login_mechanism
from ingest.kafka.config import KafkaConfig, kafka_python_arguments

ANSWER_SECONDS = 5.0
METADATA = 3
SASL_HANDSHAKE = 17
API_VERSIONS = 18
SASL_AUTHENTICATE = 36
LONGEST_ANSWER = 1 << 24
TLS_RECORDS = (0x14, 0x15, 0x16)
"""First bytes of an answer that only a TLS server sends."""


def check_access(config: KafkaConfig, seconds: float = ANSWER_SECONDS) -> None:
    """Returns once one of the servers has accepted this client; raises BrokerError with the reason if none does."""
    arguments = kafka_python_arguments(config)
    faults: list[str] = []
    for server in config.servers:
        try:
            _check_server(server, arguments, config, seconds)
            return
        except BrokerError as error:
            faults.append(str(error))
    raise BrokerError(faults[0] if len(faults) == 1 else "no Kafka server accepts this client: " + " | ".join(faults))


def _check_server(server: str, arguments: dict[str, Any], config: KafkaConfig, seconds: float) -> None:
    """Runs the four steps with one server."""
    host, _, port = server.rpartition(":")
    try:
        plain = socket.create_connection((host.strip("[]"), int(port)), seconds)  # 1
    except OSError as error:
        raise _unreachable(server, error) from error
    with plain, _encrypted(plain, host.strip("[]"), server, arguments, config) as channel:  # 2
        connection = _Connection(channel, server, config)
        connection.ask(API_VERSIONS, 0, b"")
        if config.uses_sasl:
            connection.log_in(arguments)  # 3
        connection.ask(METADATA, 1, struct.pack(">i", 0))  # 4


def _encrypted(
    plain: socket.socket, host: str, server: str, arguments: dict[str, Any], config: KafkaConfig
) -> socket.socket:
    if config.protocol not in ("SSL", "SASL_SSL"):
        return plain
    context = ssl.create_default_context(cafile=arguments["ssl_cafile"])
    try:
        if arguments["ssl_certfile"]:
            context.load_cert_chain(
                arguments["ssl_certfile"], arguments["ssl_keyfile"], arguments["ssl_password"] or ""
            )
    except (ssl.SSLError, OSError) as error:
        raise BrokerError(
            f"client certificate {config.cert_file} with key {config.key_file} cannot be used: {_reason_of(error)}; "
            "expected PEM files that belong together; correct kafka.cert_file, kafka.key_file or the key's password"
        ) from error
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except (ssl.SSLError, OSError) as error:
        raise _untrusted(server, error, config) from error


class _Connection:
    """Requests and answers over one connection, in Kafka's oldest framing, which every broker knows."""

    def __init__(self, channel: socket.socket, server: str, config: KafkaConfig) -> None:
        self._channel = channel
        self._server = server
        self._config = config

    def ask(self, kind: int, version: int, body: bytes) -> bytes:
        head = struct.pack(">hhih", kind, version, 1, len(b"freshet")) + b"freshet"
        try:
            self._channel.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
            begin = self._receive(4)
            (size,) = struct.unpack(">i", begin)
            if begin[0] in TLS_RECORDS or not 4 <= size <= LONGEST_ANSWER:
                raise _closed(self._server, self._config, "its answer is not Kafka's plain protocol")
            return self._receive(size)[4:]
        except ssl.SSLError as error:
            raise _untrusted(self._server, error, self._config) from error
        except OSError as error:
            raise _closed(self._server, self._config, _reason_of(error)) from error

    def log_in(self, arguments: dict[str, Any]) -> None:
        name = self._config.mechanism.encode()
        answer = self.ask(SASL_HANDSHAKE, 1, struct.pack(">h", len(name)) + name)
        if struct.unpack_from(">h", answer)[0]:
            raise self._refused(f"it does not know {self._config.mechanism}; it offers {_texts(answer[2:])}")
        mechanism = login_mechanism(self._config, self._server, arguments)
        while not mechanism.is_done():
            token = mechanism.auth_bytes()
            answer = self.ask(SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token)
            code, length = struct.unpack_from(">hh", answer)
            if code:
                raise self._refused(answer[4 : 4 + max(length, 0)].decode(errors="replace") or f"error {code}")
            at = 4 + max(length, 0)
            self._receive_token(mechanism, answer[at + 4 :])

    def _receive_token(self, mechanism: Any, token: bytes) -> None:
        try:
            mechanism.receive(token)
        except (ValueError, KeyError) as error:
            raise self._refused("its answer proves that it does not know the password") from error

    def _refused(self, why: str) -> BrokerError:
        return BrokerError(
            f"Kafka at {self._server} refuses the login of {self._config.username!r} by {self._config.mechanism}: "
            f"{why}; expected a user it knows with this password; correct kafka.username, kafka.password_file (or "
            "FRESHET_KAFKA__PASSWORD) or kafka.mechanism"
        )

    def _receive(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            part = self._channel.recv(count)
            if not part:
                raise _closed(self._server, self._config, "it closes the connection")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


# ── the errors ────────────────────────────────────────────────────────────────────────────────────────────────────────
def _unreachable(server: str, error: OSError) -> BrokerError:
    return BrokerError(
        f"no answer from Kafka at {server}: {_reason_of(error)}; expected a broker that listens there; check "
        "kafka.servers, or FRESHET_KAFKA, and that it runs"
    )


def _untrusted(server: str, error: Exception, config: KafkaConfig) -> BrokerError:
    """The error of a failed TLS handshake; OpenSSL's reason tells which side refused."""
    reason = _reason_of(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        trusted = f"kafka.ca_file = {config.ca_file}" if config.ca_file else "the system's authorities"
        expected = f"expected a certificate for this very host name, signed by {trusted}"
        what = "correct kafka.ca_file, or name the server as its certificate does"
    elif "ALERT" in reason.upper():
        has = "the one in kafka.cert_file is not accepted" if config.cert_file else "this client has none"
        expected = f"expected a client certificate that the broker trusts, and {has}"
        what = "set kafka.cert_file and kafka.key_file to one signed by its authority"
    else:
        expected = f"expected a listener with TLS, since kafka.protocol = {config.protocol}"
        what = "correct the port in kafka.servers, or kafka.protocol"
    return BrokerError(f"no secure connection to Kafka at {server}: {reason}; {expected}; {what}")


def _closed(server: str, config: KafkaConfig, why: str) -> BrokerError:
    return BrokerError(
        f"Kafka at {server} does not accept this connection: {why}; expected a listener for kafka.protocol = "
        f"{config.protocol}, not for another (TLS, a login or a client certificate); correct kafka.protocol or the port"
    )


def _reason_of(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def _texts(answer: bytes) -> str:
    """A list of names from Kafka's encoding, for a message."""
    (count,) = struct.unpack_from(">i", answer)
    names = []
    at = 4
    for _ in range(count):
        (length,) = struct.unpack_from(">h", answer, at)
        names.append(answer[at + 2 : at + 2 + length].decode(errors="replace"))
        at += 2 + length
    return ", ".join(names) or "nothing"
