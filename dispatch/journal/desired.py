"""What people want of a run, as far as it lasts: the sum of the records that say so.

A pure function of records, so a dispatcher that is started anew, and one that goes back to a checkpoint, want the same
as the one before: a checkpoint has what was wanted when it was begun, and the records after it the rest. A record that
is followed twice changes nothing, since for each thing the newest counts. What a command changes is its own to say
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


def follow(desired: Desired, record: AnyRecord) -> Desired:
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


def follow_all(desired: Desired, records: Iterable[AnyRecord]) -> Desired:
    for record in records:
        desired = follow(desired, record)
    return desired
