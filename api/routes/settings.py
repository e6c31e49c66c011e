"""Settings of a run: all of them, and the few that may change while it goes on."""

from contextlib import suppress

from fastapi import APIRouter, Response

from api.access.rules import needs
from api.errors import DatabaseAway, Unprocessable
from api.models.runs import ChangeSettings, EffectiveSettings
from api.parts import Parts
from api.routes.common import COMMAND_RESPONSES, MOST_LISTED, Followed, Given, etag, give
from dispatch.policies.registry import parse_spec
from infra.errors import ConfigError

CHANGEABLE = ("policy", "deadline", "skip_above")
router = APIRouter(prefix="/v1/runs/{run}/settings", tags=["settings"])


@router.get("", summary="The settings of a run", **needs("read"))
async def read_settings(run: Followed, parts: Parts, response: Response) -> EffectiveSettings:
    """Those it was started with, without secrets, and what was changed since."""
    response.headers["ETag"] = etag(run.version)
    changed: dict[str, str] = {}
    with suppress(DatabaseAway):
        page = await parts.store.commands.list(run.place.name, None, MOST_LISTED)
        for command in reversed(page.rows):
            if command.verb in CHANGEABLE and command.state == "done":
                changed[command.verb] = command.value
    return EffectiveSettings(started_with=run.place.shown_settings(), changed=changed)


@router.patch("", summary="Change a setting", responses=COMMAND_RESPONSES, **needs("control"))
async def change_settings(run: Followed, parts: Parts, given: Given, body: ChangeSettings) -> Response:
    """Of policy, deadline and skip_above one a request; in force from the next decided step on."""
    if body.policy is not None:
        return await give(parts, run, given, "policy", value=_policy(body.policy), reason=body.reason)
    if body.deadline is not None:
        return await give(parts, run, given, "deadline", value=str(body.deadline).lower(), reason=body.reason)
    return await give(parts, run, given, "skip_above", value=str(body.skip_above), reason=body.reason)


def _policy(policy: str) -> str:
    try:
        return str(parse_spec(policy))
    except (ConfigError, ValueError) as error:
        raise Unprocessable(str(error)) from error
