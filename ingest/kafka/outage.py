"""The clock of an outage: since when a broker is silent, when to log it, and when it has lasted too long."""

import math
import time


class Outage:
    """One client's view of a broker that may stop answering, and answer again."""

    def __init__(self, longest_seconds: float | None, log_seconds: float, patience_seconds: float = 0.0) -> None:
        """An outage is logged every log_seconds at most, after patience_seconds; longest_seconds None: it is never too
        long.
        """
        self.longest_seconds = longest_seconds
        self.silent_seconds = 0.0
        """How long the broker had been silent when it last failed to answer."""
        self._log_seconds = log_seconds
        self._patience_seconds = patience_seconds
        self._since: float | None = None
        self._logged_at = -math.inf
        self._is_logged = False

    @property
    def is_on(self) -> bool:
        return self._since is not None

    @property
    def is_too_long(self) -> bool:
        return self.is_on and self.longest_seconds is not None and self.silent_seconds > self.longest_seconds

    def go_on(self) -> None:
        """To be called if the broker did not answer: an outage begins, or continues."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        self.silent_seconds = now - self._since

    def is_log_due(self) -> bool:
        """Whether the outage should be logged now; returning True counts as logged."""
        now = time.monotonic()
        if self.silent_seconds < self._patience_seconds or now - self._logged_at < self._log_seconds:
            return False
        self._logged_at = now
        self._is_logged = True
        return True

    def end(self) -> float | None:
        """To be called if the broker answered: returns how many seconds it was silent, if that was logged."""
        seconds = time.monotonic() - self._since if self._since is not None and self._is_logged else None
        self._since = None
        self._is_logged = False
        return seconds
