"""The nesting depth of a msgpack value, found without recursion: decoders recurse, and a stranger chooses the depth."""

NOT_OPENING = bytes(byte for byte in range(256) if not (0x80 <= byte <= 0x9F or 0xDC <= byte <= 0xDF))
"""Bytes that begin no list or map; any other may still be part of a number or a text."""
FIXED_BYTES = {
    **dict(zip(range(0xCA, 0xD4), (5, 9, 2, 3, 5, 9, 2, 3, 5, 9), strict=True)),
    **dict(zip(range(0xD4, 0xD9), (3, 4, 6, 10, 18), strict=True)),
}
"""Length of a value by its first byte: floats, integers, small extensions."""
COUNT_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Length of the count after the first byte of binaries, extensions and texts."""
LIST_COUNT_BYTES = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
"""The same for lists and maps."""


def is_nested_deeper(value: bytes, levels: int) -> bool:
    """Whether more than that many lists and maps are nested. For bytes that are not msgpack, either
    answer is possible.
    """
    if len(value.translate(None, NOT_OPENING)) <= levels:
        return False
    at = 0
    left = [1]  # left: values still to come, by level
    while at < len(value) and left:
        if left[-1] == 0:
            left.pop()
            continue
        left[-1] -= 1
        at, inside = _step(value, at)
        if inside:
            left.append(inside)
        if len(left) > levels + 1:
            return True
    return False


def _step(value: bytes, at: int) -> tuple[int, int]:
    """Where to continue after the value at a place, and how many values it contains: a list or a map is entered."""
    kind = value[at]
    if kind in LIST_COUNT_BYTES:
        end = at + 1 + LIST_COUNT_BYTES[kind]
        is_map = kind >= 0xDE
        return end, int.from_bytes(value[at + 1 : end], "big") * (2 if is_map else 1)
    if kind in COUNT_BYTES:
        end = at + 1 + COUNT_BYTES[kind]
        is_extension = 0xC7 <= kind <= 0xC9
        return end + int.from_bytes(value[at + 1 : end], "big") + int(is_extension), 0
    if 0xA0 <= kind <= 0xBF:
        return at + 1 + (kind & 0x1F), 0
    if 0x80 <= kind <= 0x9F:
        return at + 1, (kind & 0x0F) * (2 if kind < 0x90 else 1)
    return at + FIXED_BYTES.get(kind, 1), 0
