"""Ports and certificates of an HTTP process."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from api.config import ApiConfig
from infra.base.errors import ConfigError
from infra.web.server import listen, tls_context

ANY_PORT = ApiConfig(port=0).web


def test_port_in_use_is_a_config_error() -> None:
    match = r"choose another api\.host or api\.port"
    with listen(ANY_PORT) as taken, pytest.raises(ConfigError, match=match):
        listen(replace(ANY_PORT, port=taken.getsockname()[1]))


def test_connections_send_small_packets_at_once() -> None:
    with (
        listen(ANY_PORT) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_without_a_port_a_taken_one_is_left_alone() -> None:
    with listen(ANY_PORT) as taken:
        usual = taken.getsockname()[1]
        unnamed = replace(ANY_PORT, port=None, usual_port=usual)
        with listen(unnamed) as other:
            assert other.getsockname()[1] != usual
    with listen(unnamed) as free:
        assert free.getsockname()[1] == usual


def test_a_certificate_that_cannot_be_used_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "api.pem").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"correct api\.tls_certificate"):
        tls_context(ApiConfig(tls_certificate=tmp_path / "api.pem").web)
    with pytest.raises(ValueError, match="a key without a certificate"):
        ApiConfig(tls_key=tmp_path / "api.key")
