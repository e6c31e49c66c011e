"""A client of the API: requests with a token, answers as values, every failure as one line.

A request that changes something has an idempotency key. It can therefore be sent again if its answer was lost, and
takes effect once however often it arrives. A command that is accepted but not carried out yet is polled until it is.
"""

import ipaddress
import ssl
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2

from infra.base.errors import ConfigError, FreshetError

CONNECT_SECONDS = 5.0
QUESTION_SECONDS = 10.0
"""Time limit for a read, over all attempts."""
CHANGE_SECONDS = 30.0
"""Time limit for a change; it is longer because the API itself waits some seconds for a command to be carried out."""
SHORTEST_SECONDS = 0.001
"""Least timeout of an attempt; 0 would mean no timeout."""
ATTEMPTS = 4
PAUSE_SECONDS = 0.5
"""Pause before the second attempt; doubles with each further one."""
LONGEST_PAUSE_SECONDS = 5.0
AGAIN = (429, 503)
"""Status codes after which a request is sent again: the API or its database is busy or unavailable."""
STATUS_OF_OUTCOME = {"refused": 409, "outdated": 412}
"""Status codes with which the API answers a command that was not carried out."""
STOP = "stop"
"""The command that may end the API."""
POLL_SECONDS = 0.5
"""Time between two polls of a command that is not carried out yet."""
PAGE_ITEMS = 100
MOST_TOLD = 20
"""Most errors about parts of a request that are shown."""
GIVE_TOKEN = "give one with --token-file, FRESHET_TOKEN or --token; 'freshet token create' makes one"
GIVE_IT = "and give it with --token-file, FRESHET_TOKEN or --token"
"""Added if the server's message already says how to create a token."""


class ApiAway(FreshetError):
    """The API does not answer."""


class ApiRefused(FreshetError):
    """The API refused a request; the message is the detail of its problem."""

    def __init__(self, message: str, status: int, errors: Sequence[Mapping[str, Any]] = ()) -> None:
        """``errors`` is what the problem says about parts of the request."""
        super().__init__(message)
        self.status = status
        self.errors = errors


class ApiClient:
    """Connections to one API. Use as a context manager: leaving it closes them."""

    def __init__(self, address: str, token: str, ca_file: Path | None = None) -> None:
        """Raises ConfigError for an address, a token or a file of certificate authorities that cannot be used."""
        self.address = check_address(address)
        self._http = httpx2.Client(
            base_url=self.address,
            headers={"Authorization": f"Bearer {check_token(token)}"},
            verify=authorities(ca_file),
            trust_env=not is_loopback(self.address),  # there is no proxy between this machine and itself
        )

    def __enter__(self) -> "ApiClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, **query: str | int) -> Any:
        """Reads a resource; raises ApiAway or ApiRefused."""
        return self._read(self._send("GET", path, QUESTION_SECONDS, params=query))

    def items(self, path: str, most: int | None = None, **query: str | int) -> list[dict[str, Any]]:
        """The items of a list, page by page; at most ``most`` of them."""
        found: list[dict[str, Any]] = []
        after: dict[str, str] = {}
        while most is None or len(found) < most:
            limit = PAGE_ITEMS if most is None else min(PAGE_ITEMS, most - len(found))
            page = self.get(path, limit=limit, **query, **after)
            found += page["items"]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        return found

    def change(self, method: str, path: str, body: Mapping[str, Any] | None = None, cursor: int | None = None) -> Any:
        """Requests a change, once; it is refused if anything was changed after ``cursor``."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        if cursor is not None:
            headers["If-Match"] = f'"{cursor}"'
        return self._read(self._send(method, path, CHANGE_SECONDS, json=body, headers=headers))

    def ask(self, path: str, body: Any) -> Any:
        """Posts a body that changes nothing, so that the request may be repeated."""
        return self._read(self._send("POST", path, QUESTION_SECONDS, json=body))

    def await_answer(self, command: dict[str, Any], wait_seconds: float) -> dict[str, Any]:
        """Returns the command once it is carried out; raises ApiRefused if it is refused or takes too long.

        A stop may end the API of the run before it has answered.
        """
        path = f"/v1/runs/{command['run']}/commands/{command['id']}"
        until = time.monotonic() + wait_seconds
        while command["state"] == "pending":
            if time.monotonic() >= until:
                raise ApiRefused(
                    f"command {command['id']} ({command['verb']}) is still waiting after {wait_seconds:g} "
                    "seconds and will be carried out; expected a dispatcher that answers; look at "
                    f"{self.address}{path} later",
                    202,
                )
            pause(POLL_SECONDS)
            try:
                command = self.get(path)
            except ApiAway:
                if command["verb"] != STOP:
                    raise
                return {**command, "text": "the stop was recorded, and the API has ended since"}
        if command["outcome"] != "accepted":
            raise ApiRefused(one_line(command["text"]), STATUS_OF_OUTCOME[command["outcome"]])
        return command

    def _send(self, method: str, path: str, within_seconds: float, **more: Any) -> httpx2.Response:
        """Sends a request until it is answered, a few times and within a time limit overall; raises ApiAway."""
        until = time.monotonic() + within_seconds
        for attempt in range(1, ATTEMPTS + 1):
            answer = None
            lost = ""
            left = max(until - time.monotonic(), SHORTEST_SECONDS)
            try:
                timeout = httpx2.Timeout(left, connect=min(left, CONNECT_SECONDS))
                answer = self._http.request(method, path, timeout=timeout, **more)
            except httpx2.TransportError as error:
                lost = one_line(str(error)) or type(error).__name__
                if attempt == 1 and isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
                    break
            if answer is not None and answer.status_code not in AGAIN:
                return answer
            wait = _pause_after(answer, attempt)
            if attempt == ATTEMPTS or time.monotonic() + wait >= until:
                break
            pause(wait)
        if answer is not None:
            return answer
        raise ApiAway(self._explain(f"{method} {path}", lost, attempt, within_seconds))

    def _explain(self, asked: str, lost: str, attempts: int, within_seconds: float) -> str:
        hint = "check that 'freshet up' or 'freshet api' runs, and the address"
        if "CERTIFICATE_VERIFY_FAILED" in lost:
            hint = "give the certificate of its authority with --ca-file"
        times = "once" if attempts == 1 else f"{attempts} times"
        return (
            f"the API at {self.address} does not answer: {lost} (asked {times} for {asked}, for at most "
            f"{within_seconds:g} seconds); expected a control plane there; {hint}"
        )

    def _read(self, answer: httpx2.Response) -> Any:
        """The value of an answer; raises ApiRefused."""
        try:
            value = answer.json()
        except ValueError:
            value = None
        if answer.is_success and isinstance(value, dict | list):
            return value
        problem = explain_problem(self.address, answer.status_code, value)
        raise ApiRefused(problem, answer.status_code, errors_of(value))


def explain_problem(address: str, status: int, problem: Any) -> str:
    """One line about an answer that reports a problem."""
    if not isinstance(problem, dict) or not isinstance(problem.get("detail"), str):
        return f"{address} answered with status {status} and no problem+json; expected Freshet's API there; check --api"
    wrong = [_explain_error(error) for error in errors_of(problem)[:MOST_TOLD]]
    detail = one_line("; ".join([problem["detail"], *wrong]))
    return f"the API at {address} refuses the token: {detail}, {GIVE_IT}" if status == 401 else detail


def errors_of(problem: Any) -> list[dict[str, Any]]:
    """What a problem says about parts of the request."""
    errors = problem.get("errors") if isinstance(problem, dict) else None
    return [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []


def _explain_error(error: Mapping[str, Any]) -> str:
    """Describes an error of a value in the body, or of one sample of several."""
    if "index" in error:
        return f"sample {error['index']}: {error.get('reason')}"
    return f"{'.'.join(map(str, error.get('where', ())))}: {error.get('problem')}"


def one_line(text: str) -> str:
    """The text without line breaks and without control characters that a terminal would obey."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())


def pause(seconds: float) -> None:
    time.sleep(min(seconds, LONGEST_PAUSE_SECONDS))


def _pause_after(answer: httpx2.Response | None, attempt: int) -> float:
    """The pause before the next attempt: as the answer requests, within limits."""
    requested = "" if answer is None else answer.headers.get("Retry-After", "")
    return min(float(requested) if requested.isdigit() else PAUSE_SECONDS * 2.0 ** (attempt - 1), LONGEST_PAUSE_SECONDS)


# ── checks of options ─────────────────────────────────────────────────────────────────────────────────────────────────
def check_address(address: str, option: str = "--api or FRESHET_API_URL") -> str:
    """The address without a trailing slash; raises ConfigError, which names the ``option``, if it is invalid."""
    try:
        url = httpx2.URL(address)
    except httpx2.InvalidURL:
        url = httpx2.URL("")
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query or url.fragment:
        raise ConfigError(
            f"the API's address {address!r} cannot be used; expected http://HOST:PORT or https://HOST:PORT; correct "
            f"{option}"
        )
    return address.rstrip("/")


def check_token(token: str) -> str:
    """Raises ConfigError if the text cannot be a token; the message never shows it."""
    if not token:
        raise ConfigError(f"there is no token; expected one for the API; {GIVE_TOKEN}")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(f"the token given has other characters than a token; expected its secret alone; {GIVE_TOKEN}")
    return token


def authorities(ca_file: Path | None) -> ssl.SSLContext:
    """The certificates to trust: the system's authorities, or those of a file; raises ConfigError."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the certificates in {ca_file} cannot be used: {error}; expected a PEM file; correct --ca-file"
        ) from error


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own."""
    host = httpx2.URL(address).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
