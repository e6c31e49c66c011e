"""All commands by name. A new command is a file beside this one and a line below."""

from dispatch.commands.alpha import AlphaCommand
from dispatch.commands.checkpoint import CheckpointCommand
from dispatch.commands.deadline import DeadlineCommand
from dispatch.commands.desired import ShareLimits
from dispatch.commands.drain import DrainCommand, RemoveCommand
from dispatch.commands.link import LinkCommand
from dispatch.commands.pause import PauseCommand, ResumeCommand
from dispatch.commands.policy import PolicyCommand
from dispatch.commands.shares import SharesCommand
from dispatch.commands.skip_above import SkipAboveCommand
from dispatch.commands.spec import CommandSpec, ShownValue, wrong_value
from dispatch.commands.stop import StopCommand
from dispatch.errors import CommandRefused

COMMANDS: dict[str, type[CommandSpec]] = {
    command.name: command
    for command in (
        DrainCommand,
        RemoveCommand,
        PauseCommand,
        ResumeCommand,
        CheckpointCommand,
        StopCommand,
        AlphaCommand,
        PolicyCommand,
        DeadlineCommand,
        SkipAboveCommand,
        LinkCommand,
        SharesCommand,
    )
}


def read_command(verb: str, worker: str, value: str) -> CommandSpec:
    """Reads a command as it was given; raises CommandRefused with what was expected."""
    if (command := COMMANDS.get(verb)) is None:
        raise CommandRefused(f"there is no command {verb!r}; expected one of {', '.join(COMMANDS)}")
    if worker and not command.names_worker:
        raise CommandRefused(f"{verb} was given for worker {worker!r}; expected no worker: it is for the whole run")
    if value and not command.expected:
        raise CommandRefused(f"{verb} was given the value {value!r}; expected none")
    try:
        return command.parse(worker, value)
    except ValueError as error:
        raise wrong_value(command, value) from error


def written_value(value: ShownValue) -> str:
    """Converts a shown value to the text that ``read_command`` accepts."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case ShareLimits():
            return f"{value.least:g}:{value.largest:g}"
    return str(value)


def recorded_command(verb: str, worker: str, value: str) -> CommandSpec | None:
    """Reads a recorded command; returns None for one of another release, or for a record that is no command."""
    command = COMMANDS.get(verb)
    return None if command is None else command.parse(worker, value)


def shown_value(verb: str, value: str) -> ShownValue:
    """Converts a recorded value to its type. The text of a refused command that cannot be parsed stays text."""
    try:
        command = recorded_command(verb, "", value)
    except ValueError:
        return value
    return value or None if command is None else command.shown
