"""Makes valid and malformed messages from the descriptions of their types; a receiver must refuse the malformed ones.

New fields and message types are covered without a change here.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, get_type_hints

import msgspec
import numpy as np
from msgspec import inspect

from infra.base.packing import BITS
from infra.base.wire import ENTRY, HEADER_BYTES, OWN_FRAME, RUN_FLOAT, Header, lay_out

FEW = 3
"""Number of elements of each array."""
HUGE = (1 << 62, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1)
NO_NUMBERS = (float("nan"), float("inf"), float("-inf"), -1.0, 1e300)
OTHER_TYPES: tuple[Any, ...] = (None, "text", b"bytes", True, [[]], {"a": {"b": 1}}, 0.5, "9" * 30)
DEEP = 5_000


@dataclass(frozen=True)
class Message:
    """A message before it is encoded."""

    kind: type[Header]
    fields: dict[str, Any]
    """Fields of the header, including the type's tag."""
    arrays: list[bytes]
    """Bytes of each array."""
    forms: list[tuple[str, ...]]
    """Names of the forms of each array, narrowest first."""
    how: str = "valid"
    header: bytes | None = None
    """Bytes to send instead of the encoded fields."""
    numbers: dict[int, int] = field(default_factory=dict)
    """Numbers of forms, by the place of the array; by default arrays are sent as they are."""
    body: bytes | None = None
    """Bytes to send instead of the arrays."""
    further: list[bytes] = field(default_factory=list)
    """Frames that follow."""

    @property
    def frames(self) -> list[bytes]:
        header = msgspec.msgpack.encode(self.fields) if self.header is None else self.header
        return [header, *self.arrays_laid_out, *self.further]

    @property
    def arrays_laid_out(self) -> list[bytes]:
        if self.body is not None:
            return [self.body]
        if not self.arrays:
            return []
        own = [len(names) - 1 if array else 0 for array, names in zip(self.arrays, self.forms, strict=True)]
        numbers = [self.numbers.get(place, number) for place, number in enumerate(own)]
        return [bytes(frame) for frame in lay_out(numbers, [memoryview(array) for array in self.arrays])]

    @property
    def equal(self) -> list[list[int]]:
        """Groups of places of arrays that have the same length."""
        names = self.kind.ARRAYS._fields  # type: ignore[attr-defined]
        return [[names.index(name) for name in group] for group in self.kind.EQUALLY_LONG]

    def __str__(self) -> str:
        return f"{self.kind.__name__} spoiled by {self.how}"


def valid_message(kind: type[Header], float_dtype: str = "f4", **fields: Any) -> Message:
    """A message that can be read; ``fields`` replace generated ones."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    made = {each.encode_name: _value(each.type) for each in described.fields}
    forms = _forms(kind, float_dtype)
    arrays = [bytes(FEW * np.dtype(own).itemsize) for *_narrower, own in forms]
    return Message(kind, {"type": described.tag, **made, **fields}, arrays, forms)


def spoiled_messages(message: Message, rng: random.Random) -> Iterator[Message]:
    """The message, malformed in every known way; if a way has several variants, one is drawn."""
    for way in (_spoil_fields, _spoil_text, _spoil_arrays, _spoil_forms):
        yield from way(message, rng)


def bounded_fields(kind: type[Header]) -> Iterator[tuple[str, bool]]:
    """Every field, including nested ones, and whether it has bounds."""
    yield from _bounded(kind.__name__, inspect.type_info(kind))


# ── ways to spoil ─────────────────────────────────────────────────────────────────────────────────────────────────────
def _spoil_fields(message: Message, rng: random.Random) -> Iterator[Message]:
    described = inspect.type_info(message.kind)
    assert isinstance(described, inspect.StructType)
    for each in described.fields:
        name = each.encode_name
        if each.required:
            kept = {key: value for key, value in message.fields.items() if key != name}
            yield replace(message, fields=kept, how=f"no {name}")
        for value in _wrong_values(each.type, rng):
            how = f"{name} = {str(value)[:40]!r}"
            yield replace(message, fields=message.fields | {name: value}, how=how)
    untyped = {key: value for key, value in message.fields.items() if key != "type"}
    yield replace(message, fields=untyped, how="no type")
    for tag in (None, 7, "", "Stranger"):
        yield replace(message, fields=message.fields | {"type": tag}, how=f"type {tag!r}")
    yield replace(message, fields=message.fields | {"surplus": 1}, how="a surplus field")


def _opening(fields: int) -> bytes:
    """How a map of so many fields begins."""
    return bytes([0x80 | fields]) if fields < 16 else b"\xde" + fields.to_bytes(2, "big")


def _spoil_text(message: Message, rng: random.Random) -> Iterator[Message]:
    text = msgspec.msgpack.encode(message.fields)
    opening = _opening(len(message.fields) + 1)
    rest = text.removeprefix(_opening(len(message.fields)))
    nested = rng.choice([b"\x91", b"\x81\xa1a", b"\xdc\x00\x01"]) * DEEP
    spoiled = {
        "nothing": b"",
        "a truncation": text[: rng.randrange(1, len(text))],
        "trailing bytes": text + rng.randbytes(3),
        "random bytes": rng.randbytes(rng.randrange(1, 200)),
        "a field nested before the type": opening + b"\xa1x" + nested + b"\xc0" + rest,
        "a field nested behind": opening + rest + b"\xa1x" + nested + b"\xc0",
        "nesting alone": nested,
        "a list of billions": b"\xdd\xff\xff\xff\xff",
        "a text of billions": opening + b"\xdb\xff\xff\xff\xff" + rest,
        "too many bytes": text + bytes(HEADER_BYTES),
    }
    for how, header in spoiled.items():
        yield replace(message, header=header, how=how)


def _spoil_arrays(message: Message, rng: random.Random) -> Iterator[Message]:
    yield replace(message, further=[b""], how="a frame more")
    yield replace(message, further=message.frames, how="its header twice")
    if not message.arrays:
        yield replace(message, body=bytes(rng.randrange(20)), how="a body")
        return
    yield from _spoil_body(message, rng)
    place = rng.randrange(len(message.arrays))
    torn = message.arrays[place] + bytes(rng.randrange(1, 4))
    if message.forms[place] != ("u1",):  # single bytes cannot have a part of an element
        yield replace(message, arrays=_replaced(message.arrays, place, torn), how=f"part of an element in {place}")
    for group in message.equal:
        place = rng.choice(group)
        longer = message.arrays[place] * 2
        yield replace(message, arrays=_replaced(message.arrays, place, longer), how=f"array {place} too long")


def _spoil_body(message: Message, rng: random.Random) -> Iterator[Message]:
    """Bodies of other lengths than their tables say, and tables that name frames that are not there."""
    (body,) = message.arrays_laid_out
    at = ENTRY.size * rng.choice([place for place, array in enumerate(message.arrays) if array])
    number, nbytes = ENTRY.unpack_from(body, at)
    spoiled = {
        "a body cut off": body[: rng.randrange(len(body))],
        "a body too long": body + bytes(rng.randrange(1, 100)),
        "a body of random bytes": rng.randbytes(rng.randrange(1, 200)),
        "an array that ends behind the body": _entry_at(body, at, number, nbytes + 8 * rng.randrange(1, 1 << 28)),
        "a missing frame": _entry_at(body, at, number, OWN_FRAME),
        "bytes of an array that has none": _entry_at(body, at, number, 0),
    }
    for how, instead in spoiled.items():
        yield replace(message, body=instead, how=how)


def _spoil_forms(message: Message, rng: random.Random) -> Iterator[Message]:
    """Forms that no field allows, or whose arrays do not match each other or are incomplete."""
    for place, forms in enumerate(message.forms):
        yield _told(message, place, rng.randrange(len(forms), 256))
        empty = replace(message, arrays=_replaced(message.arrays, place, b""))
        if not any(place in group for group in message.equal):
            yield _told(empty, place, rng.randrange(1, 256))
        if forms[0] == BITS:
            unmarked = _told(message, place, 0)
            for bits in (bytes(1), b"\x01" * FEW + bytes(1)):
                arrays = _replaced(unmarked.arrays, place, bits)
                yield replace(unmarked, arrays=arrays, how=f"{len(bits)} bytes of bits without an end in array {place}")
    for group in message.equal:
        if narrower := [place for place in group if len(message.forms[place]) > 1]:
            yield _told(message, rng.choice(narrower), 0)


def _told(message: Message, place: int, number: int) -> Message:
    nbytes = len(message.arrays[place])
    numbers = message.numbers | {place: number}
    return replace(message, numbers=numbers, how=f"form {number} of the {nbytes} bytes of array {place}")


def _entry_at(body: bytes, at: int, number: int, nbytes: int) -> bytes:
    return body[:at] + ENTRY.pack(number, nbytes) + body[at + ENTRY.size :]


def _replaced(arrays: list[bytes], place: int, *instead: bytes) -> list[bytes]:
    return [*arrays[:place], *instead, *arrays[place + 1 :]]


# ── values of a described type ────────────────────────────────────────────────────────────────────────────────────────
def _forms(kind: type[Header], float_dtype: str) -> list[tuple[str, ...]]:
    hints = get_type_hints(kind.ARRAYS, include_extras=True).values()
    return [(float_dtype,) if hint.__metadata__ == (RUN_FLOAT,) else hint.__metadata__ for hint in hints]


def _value(described: inspect.Type) -> Any:
    match described:
        case inspect.IntType():
            return max(described.ge or 0, 0)
        case inspect.FloatType():
            return 0.5
        case inspect.StrType():
            return "x"
        case inspect.BytesType():
            return b"x"
        case inspect.BoolType():
            return False
        case inspect.LiteralType():
            return described.values[0]
        case inspect.ListType() | inspect.VarTupleType():
            return []
        case inspect.DictType():
            return {}
        case inspect.StructType():
            return {each.encode_name: _value(each.type) for each in described.fields}
    raise NotImplementedError(f"messages with a {type(described).__name__} cannot be made up yet")


def _wrong_values(described: inspect.Type, rng: random.Random) -> Iterator[Any]:
    """Values of other types, and values out of bounds."""
    fitting: dict[type, Callable[[Any], bool]] = {
        inspect.IntType: lambda value: type(value) is int,
        inspect.FloatType: lambda value: type(value) in (int, float),
        inspect.StrType: lambda value: type(value) is str,
        inspect.BytesType: lambda value: type(value) is bytes,
        inspect.BoolType: lambda value: type(value) is bool,
        inspect.LiteralType: lambda value: False,
        inspect.ListType: lambda value: False,
        inspect.VarTupleType: lambda value: False,
        inspect.DictType: lambda value: type(value) is dict,
        inspect.StructType: lambda value: False,
    }
    others = [value for value in OTHER_TYPES if not fitting[type(described)](value)]
    yield from rng.sample(others, 3)
    match described:
        case inspect.IntType():
            yield from HUGE
            yield (described.ge or 0) - 1
            yield described.lt if described.lt is not None else (described.le or 0) + 1
        case inspect.FloatType():
            yield from NO_NUMBERS
        case inspect.StrType() | inspect.BytesType():
            yield _value(described) * ((described.max_length or 0) + 1)
        case inspect.ListType() | inspect.VarTupleType():
            yield [_value(described.item_type)] * ((described.max_length or 0) + 1)
            yield [wrong := next(_wrong_values(described.item_type, rng)), wrong]
        case inspect.StructType():
            inner = _value(described)
            for each in described.fields:
                yield {key: value for key, value in inner.items() if key != each.encode_name}
                yield inner | {each.encode_name: rng.choice(list(_wrong_values(each.type, rng)))}


def _bounded(path: str, described: inspect.Type) -> Iterator[tuple[str, bool]]:
    match described:
        case inspect.IntType() | inspect.FloatType():
            low, high = (described.ge, described.gt), (described.le, described.lt)
            yield path, any(bound is not None for bound in low) and any(bound is not None for bound in high)
        case inspect.StrType() | inspect.BytesType():
            yield path, described.max_length is not None
        case inspect.ListType() | inspect.VarTupleType():
            yield path, described.max_length is not None
            yield from _bounded(f"{path}[]", described.item_type)
        case inspect.DictType():
            yield path, described.max_length is not None
        case inspect.StructType():
            for each in described.fields:
                yield from _bounded(f"{path}.{each.name}", each.type)
