"""Predictions and snapshots of a run's own server, passed on, so that a page needs one address and one session.

The server checks the caller's token itself and audits what it changes. Nothing is known here about its answers.
"""

import ssl
from functools import cache
from typing import Any

from fastapi import APIRouter, Request, Response

from api.parts import ApiParts, Parts
from api.routes.common import Followed
from api.runs.followed import FollowedRun
from infra.base.run_folder import read_endpoint
from infra.web.client import secret_of
from infra.web.errors import NotAvailable, NotFound
from infra.web.rules import needs

SERVER = "serve"
ANSWER_SECONDS = 10.0
router = APIRouter(prefix="/v1/runs/{run}/served", tags=["served"])
passed_on: dict[str, Any] = {"response_class": Response, "responses": {200: {"description": "The server's answer"}}}


@router.post("/predict", summary="Predict with the run's server", **passed_on, **needs("predict"))
async def predict(run: Followed, parts: Parts, request: Request) -> Response:
    """The same as /v1/predict at the server."""
    return await _pass_on(run, parts, request, "POST", "/v1/predict")


@router.get("/snapshots", summary="Snapshots that there are", **passed_on, **needs("read"))
async def snapshots(run: Followed, parts: Parts, request: Request) -> Response:
    """The same as /v1/snapshots at the server."""
    return await _pass_on(run, parts, request, "GET", "/v1/snapshots")


@router.get("/snapshots/current", summary="What is served", **passed_on, **needs("read"))
async def current_snapshot(run: Followed, parts: Parts, request: Request) -> Response:
    """The same as /v1/snapshots/current at the server."""
    return await _pass_on(run, parts, request, "GET", "/v1/snapshots/current")


@router.put("/snapshots/pin", summary="Serve one snapshot until it is unpinned", **passed_on, **needs("control"))
async def pin(run: Followed, parts: Parts, request: Request) -> Response:
    """The same as PUT /v1/snapshots/pin at the server."""
    return await _pass_on(run, parts, request, "PUT", "/v1/snapshots/pin")


@router.delete("/snapshots/pin", summary="Serve the newest good snapshot again", **passed_on, **needs("control"))
async def unpin(run: Followed, parts: Parts, request: Request) -> Response:
    """The same as DELETE /v1/snapshots/pin at the server."""
    return await _pass_on(run, parts, request, "DELETE", "/v1/snapshots/pin")


@router.post("/snapshots/rollback", summary="Go back to the snapshot before", **passed_on, **needs("control"))
async def roll_back(run: Followed, parts: Parts, request: Request) -> Response:
    """The same as /v1/snapshots/rollback at the server."""
    return await _pass_on(run, parts, request, "POST", "/v1/snapshots/rollback")


async def _pass_on(run: FollowedRun, parts: ApiParts, request: Request, method: str, path: str) -> Response:
    """Asks the server with the caller's token; raises NotFound if the run has none, NotAvailable if it is away."""
    import httpx2  # a tenth of a second at the start of a process that may never need it

    address = read_endpoint(run.place.folder, SERVER)
    if address is None:
        raise NotFound(f"run {run.place.name!r} has no server; expected one; start it by 'freshet serve'")
    body = await request.body()
    headers = {"Authorization": f"Bearer {secret_of(request.scope)}", "Content-Type": "application/json"}
    try:
        async with httpx2.AsyncClient(verify=_trust(parts.web.config.tls_certificate), trust_env=False) as client:
            answer = await client.request(
                method, address + path, content=body or None, headers=headers, timeout=ANSWER_SECONDS
            )
    except (httpx2.HTTPError, OSError) as error:
        raise NotAvailable(f"the server at {address} does not answer: {error}; try again later") from error
    return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))


@cache
def _trust(certificate: Any) -> ssl.SSLContext:
    """What the server's certificate is checked with: it is the one of this process, whatever host it is made for."""
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = certificate is None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # or else only a certificate that signed itself is trusted
    return context
