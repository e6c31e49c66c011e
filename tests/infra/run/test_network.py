"""Namespaces behind shaped links: made, used, and gone afterwards."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from infra.base.errors import ConfigError
from infra.base.link_gbit import LinkGbit
from infra.run.network import namespaces, remove_abandoned
from tests.infra.run.allowed import NEEDED, can_make_namespaces

pytestmark = pytest.mark.skipif(not can_make_namespaces(), reason=NEEDED)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def abandoned() -> Iterator[str]:
    """A namespace and a bridge that a process which has ended left behind; the number of that process."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    _ip("netns", "add", f"freshet-{ended.pid}-0")
    _ip("link", "add", f"fr{ended.pid}b", "type", "bridge")
    _ip("link", "add", f"fr{ended.pid}s", "type", "veth", "peer", "name", f"fr{ended.pid}p")
    yield str(ended.pid)
    remove_abandoned()


def test_a_worker_reaches_the_host_from_its_own_namespace() -> None:
    with namespaces([LinkGbit.of(1.0), LinkGbit.of(0.1)]) as network, socket.create_server((network.host, 0)) as server:
        where = f"('{network.host}', {server.getsockname()[1]})"
        hello = f"import socket; socket.create_connection({where}, 10).sendall(b'hello')"
        subprocess.run([*network.inside(1), sys.executable, "-c", hello], check=True)
        accepted, (sender, _) = server.accept()
        with accepted:
            assert accepted.recv(5) == b"hello"
        assert sender == network.host.removesuffix(".1") + ".3"


def test_either_end_of_a_link_has_its_speed() -> None:
    with namespaces([LinkGbit.of(1.0), LinkGbit(0.02, 0.01)]) as network:
        inside = subprocess.run(
            [*network.inside(1), "tc", "-json", "qdisc", "show", "dev", "eth0"], check=True, capture_output=True
        ).stdout
        outside = subprocess.run(
            ["tc", "-json", "qdisc", "show", "dev", f"fr{os.getpid()}v1"], check=True, capture_output=True
        ).stdout
    for told, gbit in ((inside, 0.01), (outside, 0.02)):
        (queue,) = json.loads(told)
        assert queue["kind"] == "tbf"
        assert queue["options"]["rate"] == gbit * 1e9 / 8


def test_what_workers_send_to_the_servers_crosses_their_own_link() -> None:
    with namespaces([LinkGbit.of(1.0)], server_gbit=0.02) as network, socket.create_server((network.host, 0)) as server:
        where = f"('{network.host}', {server.getsockname()[1]})"
        hello = f"import socket; socket.create_connection({where}, 10).sendall(b'hello' * 10_000)"
        subprocess.run([*network.inside(0), sys.executable, "-c", hello], check=True)
        accepted, _ = server.accept()
        with accepted, accepted.makefile("rb") as received:
            assert len(received.read()) == 50_000
        sent = [_queue(f"fr{os.getpid()}{end}") for end in "sp"]
    assert [queue["options"]["rate"] for queue in sent] == [20e6 / 8] * 2
    assert sent[1]["bytes"] > 50_000


def _queue(interface: str) -> dict[str, Any]:
    """What is known of the one queue of an interface."""
    shown = subprocess.run(["tc", "-s", "-json", "qdisc", "show", "dev", interface], check=True, capture_output=True)
    (queue,) = json.loads(shown.stdout)
    return dict(queue)


def test_nothing_is_left_behind() -> None:
    with namespaces([LinkGbit.of(1.0)], server_gbit=1.0) as network:
        assert network.names[0] in _ip("netns", "list")
    assert network.names[0] not in _ip("netns", "list")
    assert f"fr{os.getpid()}" not in _ip("link")


def test_what_an_ended_process_left_behind_is_removed(abandoned: str) -> None:
    with namespaces([LinkGbit.of(1.0)]) as network:
        assert network.names[0] in _ip("netns", "list")
        assert f"freshet-{abandoned}-0" not in _ip("netns", "list")
        assert f"fr{abandoned}" not in _ip("link")


def test_a_machine_without_the_commands_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with (
        pytest.raises(ConfigError, match=r"made: 'ip netns list' failed.*--network shaped"),
        namespaces([LinkGbit.of(1.0)]),
    ):
        pass


def test_a_command_that_fails_is_told_and_undone() -> None:
    with (
        pytest.raises(ConfigError, match=r"tbf rate 0bit.*run as root"),
        namespaces([LinkGbit.of(1.0), LinkGbit.of(0.0)]),
    ):
        pass
    assert f"fr{os.getpid()}" not in _ip("link")
