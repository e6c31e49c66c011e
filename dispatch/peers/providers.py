"""Which shards serve a run, and where: each offers itself, and there is one per number.

A process that cannot be reached any more may be replaced by another, and stays replaced: it may have been stopped, and
offer itself again when it continues.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from infra.base.agreement import differing
from ps.protocol import Serve


@dataclass(frozen=True)
class Provider:
    """A shard that has offered itself."""

    number: int
    identity: bytes
    """Routing id of its socket, which identifies the process."""
    endpoint: str
    publisher: str = ""
    """Where it publishes the files of checkpoints; empty: nowhere."""

    @property
    def name(self) -> str:
        return f"shard {self.number}"


class Providers:
    """Shards by number."""

    def __init__(self, shards: int, settings: Mapping[str, str]) -> None:
        """settings: those that every shard must share."""
        self.count = shards
        self._settings = dict(settings)
        self._known: dict[int, Provider] = {}
        self._newest: dict[int, bytes] = {}
        """Identity of the last accepted process of each number."""
        self._replaced: set[bytes] = set()
        """Identities of those before it."""
        self.in_use: tuple[Provider, ...] = ()
        """The shards that the current generation uses, by number."""

    @property
    def everyone(self) -> tuple[Provider, ...]:
        return tuple(self._known[number] for number in sorted(self._known))

    @property
    def are_complete(self) -> bool:
        return len(self._known) == self.count

    @property
    def absent(self) -> list[str]:
        """Names of the shards that have not offered themselves."""
        return [f"shard {number}" for number in range(self.count) if number not in self._known]

    @property
    def replaced(self) -> list[str]:
        """Names of the shards in use that are gone, or that a newer process has replaced."""
        return [provider.name for provider in self.in_use if self._known.get(provider.number) != provider]

    def holder(self, sender: bytes, offer: Serve) -> bytes | None:
        """The process that already serves as the shard for which another offers itself; None: there is none, or the
        other is refused anyway.
        """
        known = self._known.get(offer.terms.shard)
        is_refused = self._refusal(sender, offer) is not None
        return None if known is None or sender == known.identity or is_refused else known.identity

    def is_replaced(self, sender: bytes) -> bool:
        """Whether a newer process has taken the place of this one."""
        return sender in self._replaced

    def admit(self, sender: bytes, offer: Serve) -> str | None:
        """Handles an offer; returns the reason if it is refused."""
        if (reason := self._refusal(sender, offer)) is not None:
            return reason
        shard = offer.terms.shard
        if (before := self._newest.get(shard, sender)) != sender:
            self._replaced.add(before)
        self._newest[shard] = sender
        self._known[shard] = Provider(shard, sender, offer.endpoint, offer.publisher)
        return None

    def _refusal(self, sender: bytes, offer: Serve) -> str | None:
        """Why a shard has no place in the run."""
        terms = offer.terms
        if terms.shards != self.count or terms.shard >= self.count:
            return (
                f"shard {terms.shard} of {terms.shards} offered itself to a run with shards 0 to {self.count - 1}; "
                "expected one of these; correct ps.shards or --shard of this shard"
            )
        if difference := differing(self._settings, "the dispatcher", terms.settings, f"shard {terms.shard}"):
            return difference
        if self.is_replaced(sender):
            return f"a newer process serves as shard {terms.shard}; start no second one of a number"
        return None

    def drop(self, provider: Provider) -> None:
        """Notes that a process cannot be reached."""
        if self._known.get(provider.number) == provider:
            del self._known[provider.number]

    def release(self) -> None:
        """Ends the use by a generation that ended early: the state of its shards no longer matters."""
        self.in_use = ()

    def use(self) -> tuple[str, ...]:
        """Uses the known shards for the next generation; returns their endpoints, by number."""
        self.in_use = self.everyone
        return tuple(provider.endpoint for provider in self.in_use)
