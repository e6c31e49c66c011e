"""Predictions."""

import asyncio
from time import time
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from api.access.rules import needs
from api.errors import BadRequest, NotAvailable, TooLarge, Unprocessable
from api.problems import answer_of
from api.runs.samples import MOST_REJECTS, split_events
from ingest.codec.decoder import Decoded
from ingest.codec.packed import is_packed
from ingest.codec.unknown import nearest_field, unknown_fields
from ingest.schema import Schema
from ingest.streams.position import Position
from ingest.streams.source import Record
from serving.engine import Predicted
from serving.errors import NothingServed
from serving.labels.errors import BadPredictionId
from serving.labels.predictions import new_id
from serving.labels.served import ids_of
from serving.models import Predictions
from serving.parts import Parts, ServingParts
from serving.versions import version_of

BRIEF_BYTES = 16 << 10
"""of a body that is decoded at once; a longer one is decoded in a thread, so that others are not kept waiting"""
SAMPLE = {"fields": {"user": "u-17", "item": "i-4711"}}
BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {"schema": {"anyOf": [{"type": "object"}, {"type": "array"}]}, "example": [SAMPLE]},
        "application/x-ndjson": {"schema": {"type": "string"}},
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    },
}
rule = needs("predict")
router = APIRouter(tags=["predictions"])


@router.post(
    "/v1/predict",
    summary="Predict clicks",
    response_model=Predictions,
    openapi_extra={**rule["openapi_extra"], "requestBody": BODY},
)
async def predict(
    request: Request,
    parts: Parts,
    strict: Annotated[bool, Query(description="Refuse samples with fields that the schema does not know.")] = False,
) -> Response:
    """A sample, a list of them, one a line, or a packed record, in the format of events; label and time are optional.

    All samples of a request are answered by one version of the model. If one of them does not fit the schema of the
    run, none is answered. Fields that the schema does not know have no effect and are named in the answer.
    """
    body = await request.body()
    if not body or body.isspace():
        raise BadRequest("the body is empty; expected samples")
    is_brief = len(body) <= BRIEF_BYTES
    decoded, ids, unknown = _decode(parts, body) if is_brief else await asyncio.to_thread(_decode, parts, body)
    if strict and unknown:
        raise BadRequest(_explain_unknown(unknown, parts.decoder.schema))
    if decoded.rejects:
        where = [each.position.index if is_packed(body) else each.position.offset for each in decoded.rejects]
        told = zip(where, decoded.rejects, strict=True)
        errors = [{"index": index, "reason": reject.reason} for index, reject in told][:MOST_REJECTS]
        return answer_of(Unprocessable("not every sample fits the schema of the run"), {"errors": errors})
    if len(decoded) > parts.config.request_samples:
        raise TooLarge(
            f"{len(decoded)} samples; expected {parts.config.request_samples} at most; send several requests"
        )
    try:
        predicted = await asyncio.wrap_future(parts.engine.submit(decoded.samples))
    except NothingServed as error:
        raise NotAvailable(str(error)) from error
    if parts.labels is not None:
        parts.labels.log(ids, predicted.probabilities_B, predicted.manifest)
    return Response(_answer(predicted, ids, unknown), media_type="application/json")


def _decode(parts: ServingParts, body: bytes) -> tuple[Decoded, list[str], list[str]]:
    """(the samples, the id of each where predictions are logged, names of fields that the schema does not know)."""
    payloads = [body] if is_packed(body) else split_events(body, parts.config.request_samples)
    strange: list[bytes] = []
    records = [Record(at, None, each, 0) for at, each in enumerate(payloads)]
    decoded = parts.decoder.decode(records, Position(0), strange)
    unknown = list(unknown_fields(strange, parts.decoder.schema)) if strange else []
    if parts.labels is None or decoded.rejects:
        return decoded, [], unknown
    try:
        return decoded, [new_id() for _ in range(len(decoded))] if is_packed(body) else ids_of(payloads), unknown
    except BadPredictionId as error:
        raise Unprocessable(str(error)) from error


def _explain_unknown(unknown: list[str], schema: Schema) -> str:
    likely = ((name, nearest_field(name, schema.sources)) for name in unknown)
    names = ", ".join(f"{name!r} (perhaps {near!r})" if near else repr(name) for name, near in likely)
    return (
        f"samples have fields that schema {schema.name!r} does not know: {names}; expected some of "
        f"{', '.join(schema.sources)}; correct or remove them, or ask without strict"
    )


def _answer(predicted: Predicted, ids: list[str], unknown: list[str]) -> bytes:
    """The JSON of Predictions; written by hand because pydantic would look at every number."""
    told = {
        "probabilities": predicted.probabilities_B.tolist(),
        "version": version_of(predicted.manifest)._asdict(),
        "age_seconds": max(0.0, time() - predicted.manifest.at_seconds),
    }
    optional = {"ids": ids, "unknown_fields": unknown}
    return msgspec.json.encode(told | {name: value for name, value in optional.items() if value})
