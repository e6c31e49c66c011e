"""The Python client of Freshet: predictions, events, and control of runs over HTTP.

What is listed in ``__all__`` keeps its meaning within a major release.
"""

from freshet_client.answers import Event, Prediction, RejectedRow, Sent, SnapshotName
from freshet_client.clients import AsyncClient, Client
from freshet_client.errors import (
    ClientError,
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    Outdated,
    Problem,
    RateLimited,
    TooLarge,
    Unauthorized,
    Unavailable,
    Unfitting,
    UnknownAnswer,
    Unreachable,
)

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "Conflict",
    "Event",
    "Forbidden",
    "InvalidInput",
    "NotFound",
    "Outdated",
    "Prediction",
    "Problem",
    "RateLimited",
    "RejectedRow",
    "Sent",
    "SnapshotName",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "Unfitting",
    "UnknownAnswer",
    "Unreachable",
]
