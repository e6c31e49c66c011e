"""The quality of a run over time, by slice and with its calibration; and how much the stream has changed."""

from typing import Any

import msgspec
from fastapi import APIRouter, Response

from api.models.quality import DriftAnswer, QualityAnswer
from api.parts import Parts
from api.routes.common import Followed
from api.runs.followed import FollowedRun
from dispatch.progress.quality import DriftStatus
from dispatch.progress.status import Status
from infra.web.errors import NotAvailable
from infra.web.rules import needs

router = APIRouter(prefix="/v1/runs/{run}", tags=["history"])


@router.get("/quality", summary="Quality over time", response_model=QualityAnswer, **needs("read"))
async def read_quality(run: Followed, parts: Parts) -> Response:
    """AUC, logloss, predictions and click rate by window and slice, and the calibration curve.

    As the dispatcher published them last; 503 if it has published nothing since the API began to follow the run. The
    values of slices are looked for in events of the run's stream.
    """
    return _encoded(await parts.slices.described(run.place, _status_of(run).over_time))


@router.get("/drift", summary="Changes of the stream", response_model=DriftAnswer, **needs("read"))
async def read_drift(run: Followed) -> Response:
    """Alarms of the click rate and of fields, and how much each field's values differ between the newest windows."""
    return _encoded(_status_of(run).drift)


def _status_of(run: FollowedRun) -> Status:
    if run.live.status is None:
        raise NotAvailable(
            f"run {run.place.name!r} has published no status; expected a run that trains; read its newest checkpoint "
            "with 'freshet quality --run FOLDER'"
        )
    return run.live.status


def _encoded(found: dict[str, Any] | DriftStatus) -> Response:
    return Response(msgspec.json.encode(found), media_type="application/json")
