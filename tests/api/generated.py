"""Requests that are generated from an OpenAPI document, and what every answer to them must be.

An operation gets a few requests that are drawn at random, and a drawn share of those that try the bounds of each of its
parameters and parts of its body, one after the other. There are some 1,300 of these for the control plane, most of them
the same headers and cursors for one operation after the other; answering all of them takes 20 s of a processor. Seeds
differ from run to run, so all of them are tried in time, and ``--fuzz-rounds 3`` tries all of them at once.
"""

from collections import Counter
from random import Random
from typing import Any

import requests
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation.meta import TestPhase
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.schemas import OpenApiSchema

from tests.api.serving import Served
from tests.fuzzing import seed_and_rounds

SEED, ROUNDS = seed_and_rounds()
EXAMPLES = 3 * ROUNDS
"""requests of each operation that are drawn at random"""
SHARE = ROUNDS / 3
"""of the requests that try bounds"""
OPEN_OPERATIONS = ("GET /healthz", "GET /readyz", "POST /v1/session")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]

tried = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
"""how a test of an operation is run"""
_seen: Counter[str] = Counter()
"""requests of every operation that try bounds"""


def document_of(app: FastAPI) -> OpenApiSchema:
    """What requests are generated from."""
    return schemathesis.openapi.from_dict(app.openapi(), config=schemathesis.Config.from_dict({"seed": SEED}))


def is_drawn(case: Any) -> bool:
    """Whether a request is one of those that are sent in this run; the same whichever operations are tested."""
    if case.meta is None or case.meta.phase.name != TestPhase.COVERAGE:
        return True
    _seen[case.operation.label] += 1
    return Random(f"{SEED} {case.operation.label} {_seen[case.operation.label]}").random() < SHARE


def check_answers(case: Any, served: Served, session: requests.Session) -> None:
    """Sends a request without a token, which is denied, and with one: both answers are as the document says."""
    case.headers = {name: value for name, value in (case.headers or {}).items() if name != "Authorization"}
    denied = case.call(base_url=served.address, session=session)
    case.validate_response(denied, checks=CHECKS)
    assert denied.status_code == 401 or case.operation.label in OPEN_OPERATIONS
    answer = case.call(base_url=served.address, session=session, headers={"Authorization": f"Bearer {served.token}"})
    case.validate_response(answer, checks=CHECKS)


@schemathesis.serializer("application/x-ndjson")
def _lines(ctx: Any, value: Any) -> bytes:
    return str(value).encode("utf-8", "replace")
