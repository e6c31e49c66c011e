"""Predictions."""

import asyncio
from time import time
from typing import Annotated, NamedTuple

import msgspec
from fastapi import APIRouter, Query, Request, Response

from infra.web.errors import BadRequest, NotAvailable, TooLarge, Unprocessable
from infra.web.events import DecodedBody, RejectedEvent, decode_body, describe_body, read_body
from infra.web.problems import answer_of
from infra.web.rules import needs
from ingest.codec.decoder import Decoded
from ingest.codec.unknown import nearest_field, unknown_fields
from ingest.schema import Schema
from serving.engine import Predicted
from serving.errors import NothingServed
from serving.labels.errors import BadPredictionId
from serving.labels.predictions import new_id
from serving.labels.served import ids_of
from serving.models import Predictions
from serving.parts import Parts, ServingParts
from serving.snapshot_id import snapshot_id_of

BRIEF_BYTES = 16 << 10
"""Largest body that is decoded in the event loop; a longer one is decoded in a thread, so that others do not wait."""
SAMPLE = {"fields": {"user": "u-17", "item": "i-4711"}}
rule = needs("predict")
router = APIRouter(tags=["predictions"])


@router.post(
    "/v1/predict",
    summary="Predict clicks",
    response_model=Predictions,
    openapi_extra={**rule["openapi_extra"], "requestBody": describe_body(SAMPLE)},
)
async def predict(
    request: Request,
    parts: Parts,
    strict: Annotated[bool, Query(description="Refuse samples with fields that the schema does not know.")] = False,
) -> Response:
    """Takes one sample, a list, one per line, or a packed record, in the format of events; label and time are optional.

    All samples of a request are answered from one snapshot. If one of them does not fit the schema of the run, none is
    answered. Fields that the schema does not know have no effect and are named in the answer.
    """
    body = await read_body(request, "samples")
    is_brief = len(body) <= BRIEF_BYTES
    asked = _decode(parts, body) if is_brief else await asyncio.to_thread(_decode, parts, body)
    if strict and asked.unknown:
        raise BadRequest(_explain_unknown(asked.unknown, parts.decoder.schema))
    if asked.rejects:
        errors = [event.model_dump() for event in asked.rejects]
        return answer_of(Unprocessable("not every sample fits the schema of the run"), {"errors": errors})
    if len(asked.decoded) > parts.config.request_samples:
        raise TooLarge(
            f"{len(asked.decoded)} samples; expected {parts.config.request_samples} at most; send several requests"
        )
    try:
        predicted = await asyncio.wrap_future(parts.engine.submit(asked.decoded.samples))
    except NothingServed as error:
        raise NotAvailable(str(error)) from error
    if parts.labels is not None:
        parts.labels.log(asked.ids, predicted.probabilities_B, predicted.manifest)
    return Response(_answer(predicted, asked, parts.decoder.schema.labels), media_type="application/json")


class AskedSamples(NamedTuple):
    """The samples of a request."""

    decoded: Decoded
    rejects: list[RejectedEvent]
    ids: list[str]
    """One id per sample, if predictions are logged."""
    unknown: list[str]
    """Names of fields that the schema does not know."""


def _decode(parts: ServingParts, body: bytes) -> AskedSamples:
    strange: list[bytes] = []
    events = decode_body(parts.decoder, body, parts.config.request_samples, strange)
    rejects = events.rejects
    unknown = list(unknown_fields(strange, parts.decoder.schema)) if strange else []
    ids = [] if parts.labels is None or rejects else _ids(events)
    return AskedSamples(events.decoded, rejects, ids, unknown)


def _ids(events: DecodedBody) -> list[str]:
    """The client's ids, or new ones."""
    if events.is_packed:
        return [new_id() for _ in range(len(events.decoded))]
    try:
        return ids_of(events.payloads)
    except BadPredictionId as error:
        raise Unprocessable(str(error)) from error


def _explain_unknown(unknown: list[str], schema: Schema) -> str:
    likely = ((name, nearest_field(name, schema.sources)) for name in unknown)
    names = ", ".join(f"{name!r} (perhaps {near!r})" if near else repr(name) for name, near in likely)
    return (
        f"samples have fields that schema {schema.name!r} does not know: {names}; expected some of "
        f"{', '.join(schema.sources)}; correct or remove them, or ask without strict"
    )


def _answer(predicted: Predicted, asked: AskedSamples, labels: tuple[str, ...]) -> bytes:
    """The JSON of Predictions, encoded directly because pydantic would validate every number."""
    snapshot = snapshot_id_of(predicted.manifest)._asdict()
    answer = {
        "probabilities": predicted.probabilities_B.tolist(),
        "snapshot": snapshot,
        "age_seconds": max(0.0, time() - predicted.manifest.at_seconds),
        "version": snapshot,  # the snapshot's name in earlier releases
    }
    by_label = {name: predicted.probabilities_BM[:, place].tolist() for place, name in enumerate(labels)}
    optional = {"labels": by_label, "ids": asked.ids, "unknown_fields": asked.unknown}
    return msgspec.json.encode(answer | {name: value for name, value in optional.items() if value})
