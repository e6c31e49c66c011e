"""Settings of a run: all of them, and the few that may change during the run."""

from contextlib import suppress

from fastapi import APIRouter, Response

from api.models.runs import ChangeSettings, CommandValue, EffectiveSettings, value_of
from api.parts import ApiParts, Parts
from api.routes.common import COMMAND_RESPONSES, MOST_LISTED, Followed, Given, etag, give
from dispatch.commands.deadline import DeadlineCommand
from dispatch.commands.policy import PolicyCommand
from dispatch.commands.skip_above import SkipAboveCommand
from dispatch.commands.spec import CommandSpec
from infra.base.errors import ConfigError
from infra.web.errors import DatabaseAway, Unprocessable
from infra.web.rules import needs

CHANGEABLE = (PolicyCommand.name, DeadlineCommand.name, SkipAboveCommand.name)
router = APIRouter(prefix="/v1/runs/{run}/settings", tags=["settings"])


@router.get("", summary="The settings of a run", **needs("read"))
async def read_settings(run: Followed, parts: Parts, response: Response) -> EffectiveSettings:
    """The settings that the run was started with, with secrets masked, and the changes since then."""
    response.headers["ETag"] = etag(run.cursor)
    changed: dict[str, CommandValue] = {}
    with suppress(DatabaseAway):
        changed = await _changed(parts, run.place.name)
    return EffectiveSettings(started_with=run.place.shown_settings(), changed=changed)


async def _changed(parts: ApiParts, run: str) -> dict[str, CommandValue]:
    """The newest value of each setting, no matter who set it.

    It may be in the journal, or in an answer that was recorded before the journal was projected that far.
    """
    newest: dict[str, tuple[int, str]] = {}
    events = await parts.store.runs.newest_events(run, "command", MOST_LISTED)
    answered = await parts.store.commands.list(run, None, MOST_LISTED)
    changes = [(event.cursor, event.body["verb"], event.body["value"]) for event in events]
    changes += [(row.cursor or 0, row.verb, row.value) for row in answered.rows if row.state == "done"]
    for cursor, verb, value in changes:
        if verb in CHANGEABLE and cursor >= newest.get(verb, (0, ""))[0]:
            newest[verb] = cursor, value
    return {verb: value_of(verb, newest[verb][1]) for verb in CHANGEABLE if verb in newest}


@router.patch("", summary="Change a setting", responses=COMMAND_RESPONSES, **needs("control"))
async def change_settings(run: Followed, parts: Parts, given: Given, body: ChangeSettings) -> Response:
    """Changes one of policy, deadline and skip_above per request, from the next step that is decided."""
    command: CommandSpec
    if body.policy is not None:
        command = PolicyCommand(body.policy)
    elif body.deadline is not None:
        command = DeadlineCommand(body.deadline)
    else:
        command = SkipAboveCommand(None if isinstance(body.skip_above, str) else body.skip_above)
    try:
        return await give(parts, run, given, command, body.reason)
    except ConfigError as error:  # the policy is unknown
        raise Unprocessable(str(error)) from error
