"""Readings over time as they are kept in tests/dispatch/alpha/traces, and how they are played back."""

from pathlib import Path

import msgspec

from dispatch.alpha.controller import AlphaChange, ControllerState, control
from dispatch.alpha.readings import Readings
from dispatch.placement.assign.choices import Backend

TRACES = Path(__file__).parent / "traces"


class Reading(msgspec.Struct, frozen=True):
    at: float
    """seconds since the beginning"""
    read: Readings


class Trace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    what: str
    is_recorded: bool
    """on a real machine; else it is made up"""
    backend: Backend
    ceiling: float
    load_from: float
    """seconds; equal to load_to: there was no load"""
    load_to: float
    readings: list[Reading]


def read_trace(name: str) -> Trace:
    return msgspec.json.decode((TRACES / f"{name}.json").read_bytes(), type=Trace)


def write_trace(trace: Trace, to: Path) -> None:
    """One reading a line, without what is not known, to four digits."""
    head = msgspec.json.encode(msgspec.structs.replace(trace, readings=[])).removesuffix(b"[]}")
    kept = [
        {"at": round(reading.at, 2), "read": {name: round(value, 4) for name, value in reading.read.figures().items()}}
        for reading in trace.readings
    ]
    to.write_bytes(head + b"[\n" + b",\n".join(map(msgspec.json.encode, kept)) + b"\n]}\n")


def play(trace: Trace) -> list[tuple[float, AlphaChange]]:
    """Everything that the controller would have changed, and when, with workers beside it and cheap links.

    The loop that was recorded had neither.
    """
    state = ControllerState(trace.ceiling, trace.ceiling, trace.backend, home=trace.backend)
    changes = []
    for reading in trace.readings:
        read = msgspec.structs.replace(reading.read, workers_here=2, exact_ms=4.0, rows_ms=10.0)
        state, change = control(state, read, reading.at)
        if change is not None:
            changes.append((reading.at, change))
    return changes
