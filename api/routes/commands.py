"""Any command that the dispatcher knows, including commands that have no route of their own yet."""

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
    """A command by its name, with its value as in answers; 422 for an unknown command or a wrong type of value."""
    try:
        command = read_command(body.verb, body.worker or "", written_value(body.shown_value()))
        return await give(parts, run, given, command, body.reason)
    except (CommandRefused, ConfigError) as error:
        raise Unprocessable(str(error)) from error
