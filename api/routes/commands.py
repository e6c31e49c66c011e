"""Any command that the dispatcher knows: the door that a new one has before it gets a route of its own."""

from fastapi import APIRouter, Response

from api.models.runs import GiveCommand
from api.parts import Parts
from api.routes.common import COMMAND_RESPONSES, Followed, Given, give
from dispatch.commands.registry import read_command, written_value
from dispatch.errors import CommandRefused
from infra.base.errors import ConfigError
from infra.web.errors import Unprocessable
from infra.web.rules import needs

router = APIRouter(prefix="/v1/runs/{run}/commands", tags=["runs"])


@router.post("", summary="Give any command", responses=COMMAND_RESPONSES, **needs("control"))
async def give_command(run: Followed, parts: Parts, given: Given, body: GiveCommand) -> Response:
    """By its name, with its value as other answers show it; 422 for one that there is not, or another kind of value."""
    try:
        command = read_command(body.verb, body.worker or "", written_value(body.shown_value()))
        return await give(parts, run, given, command, body.reason)
    except (CommandRefused, ConfigError) as error:
        raise Unprocessable(str(error)) from error
