"""Checks the structure of JSON before and after it is parsed: nesting beyond the limit, and duplicate names.

If a name occurs twice in an object, one reader might use the first value and another the last. A kernel scans all
records of a batch, whatever bytes they hold. It compares hashes of names, and is not sure if hashes are equal, a name
has escapes, or there are very many names; such a record, if it is JSON, is parsed exactly. Legend: B records.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infra.base.kernels import kernel
from ingest.codec.nesting import MOST_DEPTH

CLEAR = 0
UNSURE = 1
DEEP = 2
TOO_DEEP = -1
NAMES = 256
"""Most names of open objects that the kernel remembers."""
QUOTE = ord('"')
BACKSLASH = ord("\\")
COMMA = ord(",")
OBJECT = ord("{")
END_OBJECT = ord("}")
LIST = ord("[")
END_LIST = ord("]")
FNV_START = np.uint64(0xCBF29CE484222325)
FNV_PRIME = np.uint64(0x100000001B3)


def scan_structure(payloads: Sequence[bytes]) -> NDArray[np.uint8]:
    """DEEP for payloads nested too deeply; of the others CLEAR if no name occurs twice, otherwise UNSURE."""
    text = np.frombuffer(b"".join(payloads), np.uint8)
    return scan(text, np.cumsum([len(payload) for payload in payloads], dtype=np.int64))


def has_duplicates(payload: bytes) -> bool:
    """Whether an object of valid JSON within MOST_DEPTH has a name twice, exactly: the reference of the kernel."""
    try:
        json.loads(payload, object_pairs_hook=_check, parse_int=str, parse_float=str)
    except ValueError:  # a duplicate, or something that only this parser refuses: in doubt the event is a bad one
        return True
    return False


def _check(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name occurs twice")


def count_items(body: bytes, most: int) -> int:
    """The number of values in the list that a body begins with, counted up to ``most`` + 1; TOO_DEEP if it is nested
    deeply.

    Nothing is parsed, so a list of millions is detected before it costs anything. An empty list counts as one value.
    """
    return int(count_values(np.frombuffer(body, np.uint8), most))


@kernel
def count_values(text: NDArray[np.uint8], most: int) -> int:
    """The kernel of count_items."""
    depth = 0
    values = 1
    at = 0
    while at < text.size and values <= most:
        letter = text[at]
        if letter == QUOTE:
            at = end_of_string(text, at + 1)
        elif letter in (OBJECT, LIST):
            if depth == MOST_DEPTH:
                return TOO_DEEP
            depth += 1
        elif letter in (END_OBJECT, END_LIST):
            depth -= 1
        elif letter == COMMA and depth == 1:
            values += 1
        at += 1
    return values


@kernel
def scan(text: NDArray[np.uint8], ends_B: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The kernel of scan_structure, for payloads one after the other."""
    found_B = np.zeros(ends_B.size, np.uint8)
    names = np.empty(NAMES, np.uint64)
    begins = np.zeros(MOST_DEPTH, np.int64)
    is_object = np.zeros(MOST_DEPTH, np.bool_)
    start = 0
    for row in range(ends_B.size):
        found_B[row] = scan_one(text[start : ends_B[row]], names, begins, is_object)
        start = ends_B[row]
    return found_B


@kernel
def scan_one(
    text: NDArray[np.uint8], names: NDArray[np.uint64], begins: NDArray[np.int64], is_object: NDArray[np.bool_]
) -> int:
    depth = 0
    count = 0
    at = 0
    found = CLEAR
    is_name = False
    while at < text.size:
        letter = text[at]
        if letter == QUOTE and not is_name:
            at = end_of_string(text, at + 1)
        elif letter == QUOTE:
            at, hashed, is_plain = read_name(text, at + 1)
            if not is_plain or count == NAMES or is_among(hashed, names[begins[depth - 1] : count]):
                found = UNSURE
            else:
                names[count] = hashed
                count += 1
            is_name = False
        elif letter in (OBJECT, LIST):
            if depth == MOST_DEPTH:
                return DEEP
            begins[depth] = count
            is_object[depth] = is_name = letter == OBJECT
            depth += 1
        elif letter in (END_OBJECT, END_LIST) and depth:
            depth -= 1
            count = begins[depth]
            is_name = False
        elif letter == COMMA and depth:
            is_name = is_object[depth - 1]
        at += 1
    return found


@kernel
def end_of_string(text: NDArray[np.uint8], at: int) -> int:
    """The place of the closing quote."""
    while at < text.size and text[at] != QUOTE:
        at += 2 if text[at] == BACKSLASH else 1
    return at


@kernel
def read_name(text: NDArray[np.uint8], at: int) -> tuple[int, np.uint64, bool]:
    """The place of the closing quote, a hash of the name before it, and whether the name has no escape."""
    hashed = FNV_START
    while at < text.size and text[at] != QUOTE:
        if text[at] == BACKSLASH:
            return end_of_string(text, at), hashed, False
        hashed = (hashed ^ np.uint64(text[at])) * FNV_PRIME
        at += 1
    return at, hashed, True


@kernel
def is_among(hashed: np.uint64, names: NDArray[np.uint64]) -> bool:
    for name in names:  # noqa: SIM110 (numba does not support any)
        if name == hashed:
            return True
    return False
