"""The OpenAPI document: what FastAPI derives, plus problems and the tokens that routes need; no texts about routes."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from infra.web.answers import Problem
from infra.web.problems import PROBLEM_TYPE
from infra.web.rules import SCHEME

PROBLEMS = {
    400: "The request cannot be read",
    401: "There is no token, or one that is not valid",
    403: "The token lacks the scope that the route needs",
    404: "There is no such run, worker or command",
    405: "The path has no such method",
    408: "The request did not arrive in time",
    409: "As things are, it cannot be done",
    412: "Something was changed after the cursor of If-Match",
    413: "The body is too large",
    422: "The request does not fit its schema, or its idempotency key came with another one before",
    429: "Too many requests of this client; Retry-After says when to go on",
    503: "The database or the run cannot be reached, or the API is busy; try again",
}


def describe_routes(app: FastAPI) -> dict[str, Any]:
    """Returns the OpenAPI document, which is made once and then kept."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            openapi_version="3.1.0",
        )
        components = document.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        components["securitySchemes"] = {SCHEME: {"type": "http", "scheme": "bearer"}}
        for path in document["paths"].values():
            for operation in path.values():
                _add_problems(operation["responses"])
        app.openapi_schema = document
    return app.openapi_schema


def _add_problems(responses: dict[str, Any]) -> None:
    schema = {"schema": {"$ref": "#/components/schemas/Problem"}}
    for status, description in PROBLEMS.items():
        described = responses.setdefault(str(status), {"description": description})
        described["content"] = {**described.get("content", {}), PROBLEM_TYPE: schema}
        if status == 422:
            described.update(description=description, content={PROBLEM_TYPE: schema})
