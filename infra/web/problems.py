"""Answers errors as problem+json (RFC 9457), inside the application and in front of it; the errors are in errors.py."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from infra.web.errors import BadRequest, HttpError

PROBLEM_TYPE = "application/problem+json"
MOST_ERRORS = 50
"""Most errors of one request that are listed."""


def problem(status: int, title: str, detail: str, more: Mapping[str, Any] | None = None) -> JSONResponse:
    """Returns an error response."""
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **(more or {})}
    return JSONResponse(body, status_code=status, media_type=PROBLEM_TYPE)


def answer_of(error: HttpError, more: Mapping[str, Any] | None = None) -> JSONResponse:
    """Returns the response to one of our errors."""
    answer = problem(error.status, error.title, _clean(str(error)), more)
    if error.status == HTTPStatus.UNAUTHORIZED:
        answer.headers["WWW-Authenticate"] = "Bearer"
    if error.status == HTTPStatus.REQUEST_TIMEOUT:
        answer.headers["Connection"] = "close"
    if error.retry_after_seconds is not None:
        answer.headers["Retry-After"] = str(error.retry_after_seconds)
    return answer


async def send_problem(error: HttpError, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends the answer to an error in place of the application."""
    await answer_of(error)(scope, receive, send)


def add_problems(app: FastAPI) -> None:
    """Makes the application answer every error as a problem."""
    app.add_exception_handler(HttpError, _answer_api_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    app.add_exception_handler(Exception, _answer_failure)


async def _answer_api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return answer_of(error)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = _clean(f"{request.method} {request.url.path}: {error.detail}")
    answer = problem(error.status_code, HTTPStatus(error.status_code).phrase, detail)
    answer.headers.update(error.headers or {})
    return answer


async def _answer_invalid(_request: Request, error: Exception) -> Response:
    """Says what is wrong and where; never repeats the input, which may not even be JSON."""
    assert isinstance(error, RequestValidationError)
    errors = [
        {"where": [_clean(str(part)) for part in found["loc"]], "problem": _clean(str(found["msg"]))}
        for found in error.errors()[:MOST_ERRORS]
    ]
    return problem(422, "Invalid request", "the request does not fit its schema", {"errors": errors})


async def _answer_nobody(_request: Request, _error: Exception) -> Response:
    """Answers when the client has disconnected before its body arrived; that is no failure of ours."""
    return problem(400, BadRequest.title, "the body did not arrive; expected all of it; send it again")


async def _answer_failure(request: Request, error: Exception) -> Response:
    """The edge of the process: logs any other error, and tells the client only that the request failed."""
    structlog.get_logger().error("request failed", path=request.url.path, exc_info=error)
    return problem(500, HttpError.title, "the request failed; the log of the API says why")


def _clean(text: str) -> str:
    """Returns the text without what UTF-8 cannot encode, and not too long."""
    return text.encode("utf-8", "replace").decode()[:2000]
