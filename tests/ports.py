"""Ports for servers of tests: no two tests that run at the same time get the same one.

A port that is free when it is chosen may be taken by another process before its server listens. So each process of the
suite has a range of its own, and goes through it port by port.
"""

import os
import random
from collections.abc import Iterator

from infra.kafka.broker import FREE_PORTS, is_free

RANGES = 8
"""Ranges of ports; a suite with more processes than that shares them."""


def own_range() -> range:
    """The ports of this process."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % RANGES
    first, end = FREE_PORTS
    size = (end - first) // RANGES
    return range(first + number * size, first + (number + 1) * size)


def _in_turn() -> Iterator[int]:
    ports = own_range()
    start = random.SystemRandom().randrange(len(ports))
    while True:
        yield from (*ports[start:], *ports[:start])


_ports = _in_turn()


def free_port() -> int:
    """A port nobody listens on now, and that nobody else in the suite is about to."""
    return next(port for port in _ports if is_free(port))
