"""Fields of events that their schema does not know: decoding skips them, so they are collected separately."""

import difflib
from collections.abc import Iterable
from typing import Any

import msgspec

from ingest.codec.nesting import is_too_deep
from ingest.codec.packed import is_packed
from ingest.schema import Schema

SHOWN_LETTERS = 40
"""Most characters of an example."""
MOST_UNKNOWN = 20
"""Most names that are reported."""
LIKENESS = 0.6
"""Similarity, from 0 to 1, above which one name may be a misspelling of another."""


class _AnyEvent(msgspec.Struct):
    fields: dict[str, Any] = {}


_decoder = msgspec.json.Decoder(_AnyEvent)


def all_fields(payload: bytes) -> dict[str, Any] | None:
    """The fields of a JSON event, known or not; None if it cannot be decoded, or is packed."""
    if is_packed(payload) or is_too_deep(payload):
        return None
    try:
        return _decoder.decode(payload).fields
    except (msgspec.DecodeError, ValueError):
        return None


def unknown_fields(payloads: Iterable[bytes], schema: Schema) -> dict[str, str]:
    """Names of fields that the schema does not know, with the first value seen; a limited number of them."""
    known = {*schema.inputs, schema.partition_by}
    found: dict[str, str] = {}
    for payload in payloads:
        for name, value in (all_fields(payload) or {}).items():
            if name not in known and value not in (None, []) and len(found) < MOST_UNKNOWN:
                found.setdefault(show_text(name), show_value(value))
    return found


def show_value(value: object) -> str:
    """A value as JSON, shortened for a message."""
    return show_text(msgspec.json.encode(value).decode())


def show_text(text: str, most: int = SHOWN_LETTERS) -> str:
    """Text of an event, truncated and escaped, so that it cannot affect a terminal or a log."""
    short = text if len(text) <= most else f"{text[: most - 1]}…"
    return short if short.isprintable() else ascii(short)[1:-1]


def nearest_field(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that the name may be a misspelling of, if there is one."""
    by_letters = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(name.lower(), by_letters, n=1, cutoff=LIKENESS)
    return by_letters[close[0]] if close else None
