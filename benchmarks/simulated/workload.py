"""A stream of keys, the workers it is dispatched to, and their links; what cannot be simulated is refused here.

Legend: K samples of the stream, F keys per sample, n workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulated.sizes import ROWS_ALONE, Sizes
from dispatch.placement.decide import relative_row_costs
from dispatch.placement.policies.registry import parse_spec
from infra.base.errors import ConfigError
from infra.base.link_gbit import LinkGbit

EVICTIONS = ("emark", "lru", "lfu")
SLOW = 0.5
"""A link with less than this share of the fastest one's speed is of the slow class."""


@dataclass(frozen=True, eq=False)
class Workload:
    """A stream of keys and the workers it is dispatched to."""

    keys_KF: NDArray[np.uint64]
    links_gbit: tuple[float, ...]
    batch: int
    """Samples per worker."""
    cache_rows: int
    """Rows of each worker's cache."""
    eviction: str = "emark"
    warm_up: int = 10
    """First steps that are not counted."""
    deadline_ms: float | None = None
    """A decision that takes longer counts as a miss."""
    sizes: Sizes = ROWS_ALONE
    uplinks_gbit: tuple[float, ...] = ()
    """Speeds of the uplinks; empty: those of the links."""
    knows_uplinks: bool = True
    """Whether decisions use the speeds of the uplinks; otherwise they take uplinks for as fast as downlinks."""
    write_behind: float = 0.0
    """Most rows that owners push ahead of a flush, as a share of the rows they pull."""

    @property
    def workers(self) -> int:
        return len(self.links_gbit)

    @property
    def steps(self) -> int:
        """Whole batches in the stream, including those that are not counted."""
        return len(self.keys_KF) // (self.batch * self.workers)

    @property
    def row_ms(self) -> float:
        """Milliseconds that a row with its state takes over the fastest link."""
        return 8 * self.sizes.row / (1e6 * max(self.links_gbit))

    @property
    def row_cost_n(self) -> NDArray[np.float64]:
        """Cost of pulling a row over each link."""
        return relative_row_costs(list(self.links_gbit))

    @property
    def push_cost_n(self) -> NDArray[np.float64]:
        """Cost of pushing a row over each link."""
        return relative_row_costs(list(self.links_gbit), list(self.uplinks_gbit or self.links_gbit))

    @property
    def known_push_cost_n(self) -> NDArray[np.float64]:
        """The same as decisions know it."""
        return self.push_cost_n if self.knows_uplinks else self.row_cost_n

    @property
    def cost_5n(self) -> NDArray[np.float64]:
        """Cost of a row of each kind over each link: pulled, pushed in an update or an eviction, all-reduced, dense.

        In a ring a row goes up while another comes down; through a hub as much of the dense part goes up as comes down.
        """
        pull_n, push_n = self.row_cost_n, self.push_cost_n
        ring_n = np.maximum(pull_n, push_n)
        dense_n = (pull_n + push_n) / 2 if self.sizes.reduce == "hub" else ring_n
        return np.stack((pull_n, push_n, push_n, ring_n, dense_n))

    @property
    def links(self) -> str:
        """The speeds of all links in words."""
        return ",".join(str(link) for link in map(LinkGbit, self.links_gbit, self.uplinks_gbit or self.links_gbit))


def make_workload(
    keys_KF: NDArray[np.uint64],
    links_gbit: Sequence[float],
    batch: int,
    cache_ratio: float,
    eviction: str = "emark",
    warm_up: int = 10,
    deadline_ms: float | None = None,
    sizes: Sizes = ROWS_ALONE,
    uplinks_gbit: Sequence[float] = (),
) -> Workload:
    """A workload whose caches hold a share of the stream's distinct keys; raises ConfigError for what cannot be run."""
    check_links([*map(LinkGbit, links_gbit, uplinks_gbit or links_gbit)])
    if eviction not in EVICTIONS:
        raise ConfigError(f"unknown eviction {eviction!r}; expected one of {', '.join(EVICTIONS)}; correct --eviction")
    if not 0 < cache_ratio <= 1:
        raise ConfigError(f"cache of {cache_ratio:g} of the keys; expected above 0, at most 1; correct --cache-ratio")
    cache_rows = max(1, int(cache_ratio * np.unique(keys_KF).size))
    workload = Workload(
        keys_KF=keys_KF,
        links_gbit=tuple(links_gbit),
        uplinks_gbit=tuple(uplinks_gbit),
        batch=batch,
        cache_rows=cache_rows,
        eviction=eviction,
        warm_up=warm_up,
        deadline_ms=deadline_ms,
        sizes=sizes,
    )
    if workload.steps <= warm_up:
        raise ConfigError(
            f"{len(keys_KF)} samples make {workload.steps} batches of {batch} × {workload.workers}; expected more than "
            f"the {warm_up} that are left out; give a longer file or lower --batch or --warm-up"
        )
    return workload


def parse_links(text: str, workers: int) -> tuple[LinkGbit, ...]:
    """Speeds as written on the command line, one per worker; an empty text makes them equal."""
    if not text.strip():
        return (LinkGbit.of(1.0),) * workers
    try:
        links = tuple(LinkGbit.parse(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"links {text!r} are no speeds; {error}; expected Gbit/s, or DOWN/UP, comma-separated; correct --links"
        ) from error
    if len(links) != workers:
        raise ConfigError(f"{len(links)} links for {workers} workers; expected one speed per worker; correct --links")
    check_links(links)
    return links


def check_links(links: Sequence[LinkGbit]) -> None:
    for link in links:
        if not all(isfinite(speed) and speed > 0 for speed in link):
            raise ConfigError(f"link of {link} Gbit/s; expected a finite speed above 0 per worker; correct --links")


def even_links(links: Sequence[LinkGbit]) -> tuple[float, ...]:
    """The speeds of links that are equally fast in both directions; raises ConfigError for others."""
    for link in links:
        if link.own_uplink:
            raise ConfigError(
                f"link of {link} Gbit/s, where both directions count as equal; expected one figure; correct --links"
            )
    return tuple(link.down for link in links)


def check_policies(text: str) -> list[str]:
    """Policies as written on the command line, in their normal form."""
    return [str(parse_spec(policy)) for policy in text.split(",")]


def is_slow(links_gbit: Sequence[float]) -> list[bool]:
    """The class of each link: slow, or fast."""
    return [link < SLOW * max(links_gbit) for link in links_gbit]
