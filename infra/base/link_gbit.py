"""The speed of a link in Gbit/s, which may differ between its two directions, and how it is written."""

from typing import NamedTuple, Self


class LinkGbit(NamedTuple):
    """Speed of a link: from the servers to a worker, and from the worker to the servers."""

    down: float
    """0: not known."""
    up: float

    @classmethod
    def of(cls, gbit: float, uplink_gbit: float | None = None) -> Self:
        """uplink_gbit: 0 or None: as fast as the downlink."""
        return cls(gbit, uplink_gbit or gbit)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads DOWN/UP, or one figure for both; raises ValueError for anything else."""
        down, _, up = text.partition("/")
        return cls(float(down), float(up or down))

    def __str__(self) -> str:
        return "/".join(dict.fromkeys(f"{speed:g}" for speed in self))

    @property
    def options(self) -> tuple[str, ...]:
        """What tells 'freshet worker' of this link; nothing if it is not known."""
        up = ("--uplink", str(self.up)) if self.own_uplink else ()
        return ("--link", str(self.down), *up) if self.down else ()

    @property
    def slower(self) -> float:
        """Speed of the slower direction."""
        return min(self)

    @property
    def own_uplink(self) -> float:
        """Speed of the uplink, or 0 if it is as fast as the downlink."""
        return 0.0 if self.up == self.down else self.up
