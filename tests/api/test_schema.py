"""Generated requests against the whole OpenAPI document: no failure of ours, and answers as the document says."""

from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.app import create_app
from tests.api.dispatcher import RUN
from tests.api.serving import Served

EXAMPLES = 2
"""requests of each operation"""

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]

# Its phase of boundary values alone has 1,300 requests, most of them the same headers and cursors for every operation.
config = schemathesis.Config.from_dict({"phases": {"coverage": {"enabled": False}}})
document = schemathesis.openapi.from_dict(create_app().openapi(), config=config)
tried = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)


@document.exclude(path_regex="/events$").parametrize()
@tried
def test_answers_are_true_to_the_document_with_a_token_and_without(case: Any, api: Served) -> None:
    if "run" in (case.path_parameters or {}):
        case.path_parameters["run"] = RUN  # any other name is unknown
    case.headers = {name: value for name, value in (case.headers or {}).items() if name != "Authorization"}
    denied = case.call(base_url=api.address)
    case.validate_response(denied, checks=CHECKS)
    assert denied.status_code == 401 or case.operation.path in ("/healthz", "/readyz")
    answer = case.call(base_url=api.address, headers={"Authorization": f"Bearer {api.token}"})
    case.validate_response(answer, checks=CHECKS)


@schemathesis.serializer("application/x-ndjson")
def _lines(ctx: Any, value: Any) -> bytes:
    return str(value).encode("utf-8", "replace")
