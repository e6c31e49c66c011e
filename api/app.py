"""The HTTP application: its routes, and errors as problem+json."""

from collections.abc import Mapping
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from api.errors import ApiError


class Health(BaseModel):
    """The answer to a health check."""

    status: str = "ok"
    version: str


def create_app() -> FastAPI:
    """A new application without global state."""
    app = FastAPI(title="Freshet", version=_version(), description="Control plane of continuous click-model training.")
    app.add_exception_handler(ApiError, _answer_api_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_api_route("/healthz", healthz, methods=["GET"], summary="Whether the API is up", tags=["health"])
    app.add_api_route("/metrics", metrics, methods=["GET"], summary="Metrics for Prometheus", tags=["health"])
    return app


async def healthz() -> Health:
    """Answers as long as the process serves requests."""
    return Health(version=_version())


def _version() -> str:
    try:
        return version("freshet")
    except PackageNotFoundError:  # run from its folder, not installed
        return "unknown"


def metrics() -> Response:
    """Every metric of this process, in Prometheus's text format."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


def problem(status: int, title: str, detail: str, more: Mapping[str, Any] | None = None) -> JSONResponse:
    """An error response in the format of RFC 9457."""
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **(more or {})}
    return JSONResponse(body, status_code=status, media_type="application/problem+json")


async def _answer_api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return problem(error.status, error.title, str(error))


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {request.url.path}: {error.detail}"
    answer = problem(error.status_code, HTTPStatus(error.status_code).phrase, detail)
    answer.headers.update(error.headers or {})
    return answer


async def _answer_invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = jsonable_encoder(error.errors())
    return problem(422, "Invalid request", "the request does not fit its schema", {"errors": errors})
