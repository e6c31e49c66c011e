"""What the store returns about tokens and the audit trail, and a page of any list. Times are seconds since 1970."""

from dataclasses import dataclass, field
from time import time
from typing import Any, Generic, Literal, TypeVar

RowT = TypeVar("RowT")

Scope = Literal["read", "control", "predict", "ingest"]
SCOPES: tuple[Scope, ...] = ("read", "control", "predict", "ingest")


@dataclass(frozen=True)
class Page(Generic[RowT]):
    """Some rows of a longer list."""

    rows: tuple[RowT, ...]
    next: str | None
    """The page token for the rows that follow; None if these are the last."""


@dataclass(frozen=True)
class NewAudit:
    """One request that changed something, or was denied."""

    actor: str
    action: str
    """Method and path of the request, as in POST /v1/runs/{run}/alpha."""
    status: int
    """Status code of the answer."""
    token: str | None = None
    """Id of the token; None if there was none."""
    run: str | None = None
    detail: dict[str, Any] | None = None
    at: float = field(default_factory=time)
    """Time of the request, in seconds since 1970."""


@dataclass(frozen=True)
class StoredAudit:
    """An entry of the audit trail."""

    id: int
    at: float
    actor: str
    token: str | None
    action: str
    run: str | None
    status: int
    detail: dict[str, Any]


@dataclass(frozen=True)
class StoredToken:
    """A token without its secret, which only its owner knows."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    created_at: float
    expires_at: float | None
    revoked_at: float | None

    def is_valid(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)
