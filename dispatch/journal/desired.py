"""What people want of a run: the combined effect of the recorded commands.

A pure function of records, so a restarted dispatcher, and one that goes back to a checkpoint, want the same as the one
before: a checkpoint has what was wanted when it was begun, and the records after it the rest. Applying a record twice
changes nothing, since the newest value of each setting counts. What a command changes is defined by the command itself
(``dispatch/commands``).
"""

from collections.abc import Iterable

import msgspec

from dispatch.commands.desired import Desired
from dispatch.commands.registry import recorded_command
from dispatch.commands.spec import CommandOrigin
from dispatch.commands.stop import STOPPED
from dispatch.journal.records import AlphaChanged, AnyRecord, Commanded, GenerationStarted, Stopped

SteeringRecord = Commanded | AlphaChanged | GenerationStarted | Stopped


def desired_after(desired: Desired, record: AnyRecord) -> Desired:
    """What is wanted after a record; the same object if it changes nothing."""
    match record:
        case Commanded() if record.verb == STOPPED:
            return msgspec.structs.replace(desired, is_stopping=False, stopped_at=record.at_seconds)
        case Commanded():
            command = recorded_command(record.verb, record.worker, record.value)
            origin = CommandOrigin(record.actor, record.reason, record.at_seconds)
            return desired if command is None else command.effect(desired, origin)
        case AlphaChanged():
            return msgspec.structs.replace(
                desired, auto_alpha=record.alpha, alpha_reason=record.reason, alpha_at=record.at_seconds
            )
        case GenerationStarted() if desired.draining:
            still = tuple(name for name in desired.draining if name in record.members)
            return msgspec.structs.replace(desired, draining=still)
        case Stopped():
            return msgspec.structs.replace(desired, is_stopping=False, stopped_at=record.at_seconds)
    return desired


def desired_after_all(desired: Desired, records: Iterable[AnyRecord]) -> Desired:
    for record in records:
        desired = desired_after(desired, record)
    return desired
