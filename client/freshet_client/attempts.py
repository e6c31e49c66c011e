"""Whether a request is sent again, and when: the same decisions for both clients. Nothing here sends or waits."""

import json
import random
import time
from collections.abc import Mapping
from typing import Any

from freshet_client.calls import Request
from freshet_client.errors import BY_STATUS, Problem, UnknownAnswer, Unreachable

AGAIN = (429, 502, 503, 504)
"""Statuses after which a request is sent again: the server, its database or a proxy is busy or away."""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0


class Attempts:
    """The attempts of one request, within a time limit for all of them."""

    def __init__(self, request: Request, address: str, within_seconds: float) -> None:
        self._request = request
        self._address = address
        self._within = within_seconds
        self._until = time.monotonic() + within_seconds
        self._count = 0

    def lost(self, error: Exception) -> float:
        """No answer arrived: the seconds to wait before the next attempt; raises Unreachable if none is left."""
        pause = self._next_pause(None)
        if pause is None:
            why = " ".join(str(error).split()) or type(error).__name__
            raise Unreachable(
                f"{self._address} does not answer {self._request.method} {self._request.path}: {why}; sent "
                f"{self._count} times within {self._within:g} s; expected a server of Freshet; check that it runs, and "
                "the address"
            ) from error
        return pause

    def answered(self, status: int, headers: Mapping[str, str], content: bytes) -> tuple[float | None, Any]:
        """(None, the answer), or (seconds to wait before the next attempt, None); raises a Problem."""
        if status in AGAIN and (pause := self._next_pause(headers.get("Retry-After"))) is not None:
            return pause, None
        try:
            value = json.loads(content)
        except ValueError:
            value = None
        if 200 <= status < 300 and isinstance(value, dict | list):
            return None, value
        raise self._problem(status, value)

    def _next_pause(self, requested: str | None) -> float | None:
        """How long to wait: as the server says, otherwise longer each time; None if the time is over."""
        self._count += 1
        doubled = FIRST_PAUSE_SECONDS * 2.0 ** min(self._count - 1, 10)
        pause = min(doubled, LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1.0)
        if requested is not None and requested.isdigit():
            pause = float(requested)
        return pause if time.monotonic() + pause < self._until else None

    def _problem(self, status: int, value: Any) -> UnknownAnswer | Problem:
        if not isinstance(value, dict) or not isinstance(value.get("detail"), str):
            return UnknownAnswer(
                f"{self._address} answered {self._request.method} {self._request.path} with status {status} and no "
                "problem details; expected a server of Freshet; check the address"
            )
        errors = [error for error in value.get("errors") or () if isinstance(error, dict)]
        moved = [
            {**error, "index": error["index"] + self._request.first} if "index" in error else error for error in errors
        ]
        kind = BY_STATUS.get(status, Problem)
        return kind(status, str(value.get("title", "")), value["detail"], moved)
