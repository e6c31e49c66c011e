"""Events and packed records made wrong in every way that a generator comes upon."""

import struct
from random import Random

from ingest.codec.packed import HEADER, PackedCodec
from ingest.convert import Event
from tests.ingest.topics import SMALL

NUMBERS = (
    *("0", "-0", "-0.0", "1", "-1", "5", "5.000001", "-5", "199.5", "200", "201", "1e-400", "1e-46", "-1e-46", "1E+2"),
    *("3.4e38", "3.5e38", "1e39", "1e308", "1e309", "-1e999", "2147483648", "9223372036854775807"),
    *("9223372036854775808", "18446744073709551616", "-9223372036854775809", "1" + "0" * 31, "1" + "0" * 32),
    *("9" * 400, "9" * 4301, "01", "1.", ".5", "+1", "0x10", "1_000", "NaN", "Infinity", "-Infinity", "nan", "--1"),
)
TEXTS = (
    *('""', '"a"', '"' + "x" * 32 + '"', '"' + "x" * 33 + '"', '"' + "é" * 16 + '"', '"' + "é" * 17 + '"', '"[{"'),
    *('"\\u0041"', '"\\ud83d\\ude00"', '"\\ud800"', '"\\udfff"', '"\\ud800\\ud800"', '"\\ude00\\ud83d"', '"\\\\ud800"'),
    *('"\\u00"', '"\\x"', '"\x00"', '"\\u0000"', '"\x7f"', '"\u2028"', '"😀"', '"\\""', '"\\\\"', '"', '"a', "'a'"),
)
LISTS = ('["a","b","c"]', '["a","b","c","d"]', '["a",null]', '[1,1.0,true,"1"]', "[]", "[[]]", '[["a"]]', "[1,]")
OTHERS = (*LISTS, "null", "true", "false", "None", "tru", "{}", '{"a":1}', '{"a":1,"a":2}', "")
NAMES = ("user", "tags", "age", "score", "us\\u0065r", "User", "", "x", "fields", "label", "event_time", "\\ud800")
DEPTHS = (1, 2, 30, 61, 62, 63, 64, 65, 66, 100, 990, 1500)
BEYOND = (("tags", '["a","b","c","d"]'), ("age", "-1"), ("age", "201"), ("score", "5.01"))
"""values of which nothing is wrong but that they are just beyond a limit"""
TIMES = ("1731600000.25", "0", "-0.0", "-1", "253402300799", "253402300800", "1e300", "null", '"1"', "true", "1e-9")
LABELS = ("0", "1", "2", "-1", "0.0", "1.0", "0.5", "true", "null", '"1"', "9" * 30, "1e0")


def json_value(draw: Random) -> str:
    kind = draw.randrange(10)
    if kind < 4:
        return draw.choice(NUMBERS)
    if kind < 7:
        return draw.choice(TEXTS)
    if kind < 8:
        return draw.choice(OTHERS)
    if kind < 9:
        return f"[{','.join(json_value(draw) for _ in range(draw.randrange(5)))}]"
    return nested(draw.choice(DEPTHS), draw)


def nested(depth: int, draw: Random) -> str:
    """So many levels of lists and objects, now and then without all of their ends."""
    levels = [draw.choice((("[", "]"), ('{"a":', "}"), ('{"[":1,"b":', "}"), ('["]",', "]"))) for _ in range(depth)]
    ends = levels if draw.random() < 0.9 else levels[draw.randrange(depth + 1) :]
    return "".join(start for start, _ in levels) + "1" + "".join(end for _, end in reversed(ends))


def good_fields(draw: Random) -> dict[str, str]:
    fields = {
        "user": draw.choice(('"u1"', "17", "true", '"é"', "2.5")),
        "tags": draw.choice(('["a"]', '["a", 2, "c"]', '"b"')),
        "age": str(draw.randrange(200)),
        "score": f"{draw.uniform(-5, 5):.3f}",
    }
    return {name: value for name, value in fields.items() if draw.random() < 0.8}


def json_event(draw: Random) -> bytes:
    """An event of the schema SMALL, right or with one or more things wrong."""
    fields = good_fields(draw)
    if draw.random() < 0.08:
        fields.update([draw.choice(BEYOND)])
    pairs = list(fields.items())
    for _ in range(draw.choice((0, 0, 0, 1, 2))):
        pairs.insert(draw.randrange(len(pairs) + 1), (draw.choice(NAMES), json_value(draw)))
    if draw.random() < 0.2:
        pairs = [(name, json_value(draw) if draw.random() < 0.5 else value) for name, value in pairs]
    told = "{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}"
    parts = [("event_time", _usually(draw, TIMES)), ("label", _usually(draw, LABELS)), ("fields", told)]
    if draw.random() < 0.1:
        draw.shuffle(parts)
    if draw.random() < 0.05:
        parts.pop(draw.randrange(3))
    if draw.random() < 0.05:
        parts.append((draw.choice(NAMES), json_value(draw)))
    space = draw.choice(("", "", "", " ", "\n\t"))
    text = space + "{" + f",{space}".join(f'"{name}":{space}{value}' for name, value in parts) + "}" + space
    return damaged(text.encode("utf-8", "surrogatepass"), draw)


def _usually(draw: Random, choices: tuple[str, ...]) -> str:
    return choices[draw.randrange(2)] if draw.random() < 0.9 else draw.choice(choices)


def damaged(payload: bytes, draw: Random) -> bytes:
    """The payload, now and then cut, flipped, repeated, encoded in another way, or other bytes altogether."""
    kind = draw.randrange(40)
    at = draw.randrange(len(payload) + 1)
    match kind:
        case 0:
            return payload[:at]
        case 1:
            return payload[:at] + draw.randbytes(draw.randrange(1, 5)) + payload[at:]
        case 2:
            return payload[:at] + payload[at + 1 :]
        case 3:
            return b"\xef\xbb\xbf" + payload
        case 4:
            return payload.decode("utf-8", "replace").encode(draw.choice(("utf-16", "utf-32-le", "latin-1")), "replace")
        case 5:
            return payload + draw.choice((b" ", b"{}", b",", b"\x00", payload))
        case 6:
            return draw.randbytes(draw.randrange(60))
        case 7:
            return payload.ljust(draw.choice((4095, 4096, 4097)))
        case 8:
            return flipped(payload, draw)
    return payload


def flipped(payload: bytes, draw: Random) -> bytes:
    """Some of its bits are turned."""
    changed = bytearray(payload)
    for _ in range(draw.randrange(1, 4) if changed else 0):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


# ── packed records ────────────────────────────────────────────────────────────────────────────────────────────────────
CODEC = PackedCodec(SMALL)
FLOATS = (0.0, -0.0, 1.0, 5.0, 5.0000005, -5.0, -6.0, 1e-45, 3.4e38, float("inf"), float("-inf"), float("nan"), 5.31)
DOUBLES = (0.0, -0.0, 1.5, -1e-300, 253402300799.5, 253402300800.0, 1e308, float("inf"), float("nan"))
COUNTS = (0, 1, 2, 3, 255, 65536, 2**31 - 1, 2**31, 2**32 - 1)


def packed_record(draw: Random) -> bytes:
    """A record of the schema SMALL, right or with one or more things wrong."""
    count = draw.choice((1, 2, 5, CODEC.most))
    events = [Event(float(draw.randrange(2**31)), draw.randrange(2), {"user": i, "score": 1.5}) for i in range(count)]
    payload = bytearray(CODEC.encode_events(events))
    for _ in range(draw.choice((0, 1, 1, 2))):
        _change_sample(payload, draw.randrange(count), draw)
    header = list(HEADER.unpack_from(payload))
    if draw.random() < 0.3:
        place = draw.randrange(1, len(header))
        widths = (None, 16, 16, 64, 32, 16, 16)
        other = draw.choice((*COUNTS, header[place] + 1, header[place] - 1, draw.getrandbits(64)))
        header[place] = other % 2 ** (widths[place] or 1)
        payload[: HEADER.size] = HEADER.pack(*header)
    return _cut(bytes(payload), draw)


def _change_sample(payload: bytearray, row: int, draw: Random) -> None:
    """Sets one of the numbers of a sample, or a few of its bits."""
    start = HEADER.size + row * CODEC.dtype.itemsize
    end = start + CODEC.dtype.itemsize
    match draw.randrange(4):
        case 0:
            struct.pack_into("<d", payload, start, draw.choice(DOUBLES))
        case 1:
            struct.pack_into("<f", payload, end - 4, draw.choice(FLOATS))
        case 2:
            struct.pack_into("<f", payload, end - 4 * draw.choice((2, 3)), draw.choice(FLOATS))
        case 3:
            payload[start:end] = flipped(bytes(payload[start:end]), draw)


def _cut(payload: bytes, draw: Random) -> bytes:
    match draw.randrange(12):
        case 0:
            return payload[: draw.randrange(len(payload))]
        case 1:
            return payload + draw.randbytes(draw.randrange(1, 80))
        case 2:
            return flipped(payload, draw)
        case 3:
            return payload[:4] + draw.randbytes(draw.randrange(60))
    return payload
