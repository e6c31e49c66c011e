"""The desired state of a run: what operators have set in place of its settings, by all commands carried out so far."""

import msgspec

from infra.base.link_gbit import LinkGbit

AUTO = "auto"
NONE = "none"


class ShareLimits(msgspec.Struct, frozen=True):
    """Bounds of one worker's elastic capacity, in equal shares of the batch."""

    least: float
    largest: float


class Desired(msgspec.Struct, frozen=True, kw_only=True):
    """What operators want instead of the settings; where a field is None or empty, the setting applies."""

    is_paused: bool = False
    is_stopping: bool = False
    """Whether a stop was requested and the run has not stopped yet."""
    stopped_at: float = 0.0
    """When the run last stopped, in seconds since 1970; 0: never. Commands given before are not for the resumed run."""
    is_auto: bool = False
    """Whether an operator has returned alpha to the dispatcher."""
    alpha: float | None = None
    """Share of exact solving that an operator has set."""
    auto_alpha: float | None = None
    """The alpha that the dispatcher itself chose last."""
    alpha_reason: str = ""
    """Reason for the newest change of alpha, whoever made it."""
    alpha_at: float = 0.0
    """When alpha was last changed, in seconds since 1970; 0 if never."""
    policy: str | None = None
    deadline: bool | None = None
    skip_above: str = ""
    """A number of events, or none."""
    links: dict[str, float] = {}
    """Link speed in Gbit/s by worker; 0 if not known."""
    uplinks: dict[str, float] = {}
    """Uplink speed in Gbit/s of those of these workers whose link is not equally fast in both directions."""
    shares: dict[str, ShareLimits] = {}
    """Share bounds by worker."""
    draining: tuple[str, ...] = ()
    """Workers that are to leave, as long as no generation has started without them."""
    removed: tuple[str, ...] = ()
    """Workers that may never come back."""

    def link_of(self, worker: str) -> LinkGbit | None:
        """Speed of a worker's link; None: no operator has set it."""
        return LinkGbit.of(self.links[worker], self.uplinks.get(worker)) if worker in self.links else None


def with_name(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Adds a name in alphabetical order, so that records have the same effect in any order and any number of times."""
    return names if name in names else tuple(sorted((*names, name)))
