"""The quality of a run over time: in windows of samples, by slice, and its calibration."""

import msgspec
from fastapi import APIRouter, Response

from api.models.quality import QualityAnswer
from api.routes.common import Followed
from infra.web.errors import NotAvailable
from infra.web.rules import needs

router = APIRouter(prefix="/v1/runs/{run}", tags=["history"])


@router.get("/quality", summary="Quality over time", response_model=QualityAnswer, **needs("read"))
async def read_quality(run: Followed) -> Response:
    """AUC, logloss, predictions and click rate by window and slice, and the calibration curve.

    As the dispatcher published them last; 503 if it has published nothing since the API began to follow the run.
    """
    status = run.live.status
    if status is None:
        raise NotAvailable(
            f"run {run.place.name!r} has published no status; expected a run that trains; read its newest checkpoint "
            "with 'freshet quality --run FOLDER'"
        )
    return Response(msgspec.json.encode(status.over_time), media_type="application/json")
