"""Real links on one machine: every worker in a separate network namespace, behind a link that the kernel shapes.

    namespace of worker 0 ── link ──┐
    namespace of worker 1 ── link ──┼── bridge, 198.18.K.1: shards and dispatcher listen here
    …                               ┘

If the servers' own link is slow as well, their address is behind a link that joins it to the bridge: what workers send
each other does not cross it.

Whatever a worker sends or receives crosses its link: rows, dense weights, orders, acknowledgements. A token bucket
filter at either end holds each direction to the given speed; congestion control is the same everywhere. Addresses are
from 198.18.0.0/15, the range reserved for benchmarks of networks. It takes Linux, the commands ip and tc, and the right
to use them (root).

Nothing is left behind: leaving the ``with`` block removes namespaces and bridge, and what a killed process left is
removed by the next one.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import msgspec
import psutil

from infra.base.errors import ConfigError
from infra.base.link_gbit import LinkGbit

KERNEL_TICKS = 250
"""Least number of ticks per second: a bucket must hold what a link carries in a tick."""
PACKET_BYTES = 1514
QUEUE = "200ms"
"""How long a packet may wait for its turn before it is dropped."""
CONGESTION = "cubic"
"""Congestion control of both ends: Linux's usual one, whatever this machine is set to; with bbr, links that carry both
directions at once took 1.25 times as long.
"""


@dataclass(frozen=True)
class Network:
    """The namespaces of one process, one for each worker."""

    host: str
    """Where servers must listen for workers to reach them."""
    names: tuple[str, ...]
    links: tuple[str, ...]
    """Ends of the links outside of the namespaces."""

    def inside(self, worker: int) -> list[str]:
        """The prefix of a command that runs in that worker's namespace."""
        return ["ip", "netns", "exec", self.names[worker]]

    def shape(self, worker: int, link: LinkGbit) -> None:
        """Gives that worker's link another speed; what waits for its turn there is dropped.

        It would stay there forever if a packet were larger than the new bucket.
        """
        _run("tc", "qdisc", "delete", "dev", self.links[worker], "root")
        _run("tc", "-netns", self.names[worker], "qdisc", "delete", "dev", "eth0", "root")
        _shape(self.names[worker], self.links[worker], link)


@contextmanager
def namespaces(speeds: Sequence[LinkGbit], server_gbit: float = 0.0) -> Iterator[Network]:
    """Inside, there is a namespace behind a link of each speed; server_gbit: of the servers' own, 0: not shaped."""
    remove_abandoned()
    owner = os.getpid()
    subnet = _free_subnet()
    bridge = f"fr{owner}b"
    with ExitStack() as undo:
        _run("ip", "link", "add", bridge, "type", "bridge")
        undo.callback(_run, "ip", "link", "delete", bridge)
        _run("ip", "link", "set", bridge, "up")
        servers = bridge
        if server_gbit:
            servers = f"fr{owner}s"
            _run("ip", "link", "set", bridge, "arp", "off")  # it would answer for the servers, past their link
            _run("ip", "link", "add", servers, "type", "veth", "peer", "name", f"fr{owner}p")
            undo.callback(_run, "ip", "link", "delete", servers)
            _run("ip", "link", "set", f"fr{owner}p", "master", bridge, "up")
            _run("ip", "link", "set", servers, "up")
            for end in (servers, f"fr{owner}p"):
                _run("tc", "qdisc", "add", "dev", end, *_bucket(server_gbit))
        _run("ip", "address", "add", f"{subnet}.1/24", "dev", servers)
        _run("ip", "route", "replace", f"{subnet}.0/24", "dev", servers, "congctl", CONGESTION)
        names, links = [], []
        for number, link in enumerate(speeds):
            name = f"freshet-{owner}-{number}"
            outside = f"fr{owner}v{number}"
            _run("ip", "netns", "add", name)
            undo.callback(_run, "ip", "netns", "delete", name)
            _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
            # the kernel removes it with the namespace, too, but in its own time
            undo.callback(_run, "ip", "link", "delete", outside)
            _connect(name, outside, bridge, f"{subnet}.{number + 2}/24")
            _run("ip", "-netns", name, "route", "replace", f"{subnet}.0/24", "dev", "eth0", "congctl", CONGESTION)
            _shape(name, outside, link)
            names.append(name)
            links.append(outside)
        yield Network(f"{subnet}.1", tuple(names), tuple(links))


def remove_abandoned() -> None:
    """Removes the namespaces, bridges and servers' links of processes that have ended without doing so."""
    for line in _run("ip", "netns", "list").splitlines():
        if _is_abandoned(re.match(r"freshet-(\d+)-\d+\b", line)):
            _run("ip", "netns", "delete", line.split()[0])
    for link in (*_interfaces("link", "show", "type", "bridge"), *_interfaces("link", "show", "type", "veth")):
        if _is_abandoned(re.fullmatch(r"fr(\d+)[bs]", link.ifname)):
            _run("ip", "link", "delete", link.ifname)


def _is_abandoned(name: re.Match[str] | None) -> bool:
    return name is not None and not psutil.pid_exists(int(name[1]))


def _free_subnet() -> str:
    """The first three numbers of a /24 that no interface of this machine has an address in."""
    found = {address.local for link in _interfaces("-4", "address") for address in link.addr_info}
    for number in range(256):
        subnet = f"198.18.{(os.getpid() + number) % 256}"
        if not any(address.startswith(f"{subnet}.") for address in found):
            return subnet
    raise ConfigError("no network left in 198.18.0.0/16; expected one in 256 to be unused; remove other namespaces")


def _connect(name: str, outside: str, bridge: str, address: str) -> None:
    """Joins a namespace to the bridge; its interface is eth0."""
    _run("ip", "link", "set", outside, "master", bridge, "up")
    _run("ip", "-netns", name, "address", "add", address, "dev", "eth0")
    _run("ip", "-netns", name, "link", "set", "lo", "up")
    _run("ip", "-netns", name, "link", "set", "eth0", "up")


def _shape(name: str, outside: str, link: LinkGbit) -> None:
    """Gives the link its speeds: either end holds what it sends to one of them."""
    _run("tc", "qdisc", "add", "dev", outside, *_bucket(link.down))
    _run("tc", "-netns", name, "qdisc", "add", "dev", "eth0", *_bucket(link.up))


def _bucket(gbit: float) -> tuple[str, ...]:
    """The end of a command that holds what an interface sends to this speed."""
    rate = int(gbit * 1e9)
    burst = rate // 8 // KERNEL_TICKS + 2 * PACKET_BYTES
    return ("root", "tbf", "rate", f"{rate}bit", "burst", str(burst), "latency", QUEUE)


class Address(msgspec.Struct):
    """One address of an interface, as ip prints it."""

    local: str = ""


class Interface(msgspec.Struct):
    """One network interface, as ip prints it."""

    ifname: str = ""
    addr_info: list[Address] = []


def _interfaces(*arguments: str) -> list[Interface]:
    answer = _run("ip", "-json", *arguments).strip()
    return msgspec.json.decode(answer, type=list[Interface]) if answer else []


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.stderr.strip().partition("\n")[0] if isinstance(error, subprocess.CalledProcessError) else ""
        raise ConfigError(
            f"no network of namespaces can be made: {' '.join(command)!r} failed: {said or error}; expected Linux with "
            "ip, tc and the right to use them; run as root, or choose --network shaped"
        ) from error
