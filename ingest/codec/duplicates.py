"""Finds JSON objects in which a name occurs twice: of two readers one would take the first value, the other the last.

A kernel scans all records of a batch. It compares hashes and gives up where it cannot be sure (equal hashes, escapes in
a name, very many names, deep nesting); those records are then parsed exactly.
Legend: B records.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infra.kernels import kernel

CLEAR, UNSURE = 0, 1
NAMES = 256
"""most names of open objects the kernel keeps"""
DEPTH = 32
QUOTE, BACKSLASH, COMMA = ord('"'), ord("\\"), ord(",")
OBJECT, END_OBJECT, LIST, END_LIST = ord("{"), ord("}"), ord("["), ord("]")
FNV_START, FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


def find_duplicates(payloads: Sequence[bytes]) -> list[int]:
    """Numbers of the payloads, all of them valid JSON, that have an object in which a name occurs twice."""
    if not payloads:
        return []
    text = np.frombuffer(b"".join(payloads), np.uint8)
    ends_B = np.cumsum([len(payload) for payload in payloads])
    unsure_B = scan(text, ends_B)
    return [row for row in np.flatnonzero(unsure_B).tolist() if has_duplicates(payloads[row])]


def has_duplicates(payload: bytes) -> bool:
    """The same for one payload, exactly: the kernel's reference, which also decides where the kernel is not sure."""
    try:
        json.loads(payload, object_pairs_hook=_check, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):  # a duplicate, or an object too deep to parse
        return True
    return False


def _check(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name occurs twice")


@kernel
def scan(text: NDArray[np.uint8], ends_B: NDArray[np.int64]) -> NDArray[np.uint8]:
    """CLEAR for records in which no name occurs twice, UNSURE for all others."""
    found_B = np.zeros(ends_B.size, np.uint8)
    names = np.empty(NAMES, np.uint64)
    begins = np.zeros(DEPTH, np.int64)
    is_object = np.zeros(DEPTH, np.bool_)
    start = 0
    for row in range(ends_B.size):
        found_B[row] = scan_one(text[start : ends_B[row]], names, begins, is_object)
        start = ends_B[row]
    return found_B


@kernel
def scan_one(
    text: NDArray[np.uint8], names: NDArray[np.uint64], begins: NDArray[np.int64], is_object: NDArray[np.bool_]
) -> int:
    depth, count, at = -1, 0, 0
    is_name = False
    while at < text.size:
        letter = text[at]
        if letter == QUOTE and not is_name:
            at = end_of_string(text, at + 1)
        elif letter == QUOTE:
            at, hashed, is_plain = read_name(text, at + 1)
            if not is_plain or count == NAMES or is_among(hashed, names[begins[depth] : count]):
                return UNSURE
            names[count] = hashed
            count += 1
            is_name = False
        elif letter in (OBJECT, LIST):
            depth += 1
            if depth == DEPTH:
                return UNSURE
            begins[depth] = count
            is_object[depth] = is_name = letter == OBJECT
        elif letter in (END_OBJECT, END_LIST):
            count = begins[depth]
            depth -= 1
            is_name = False
        elif letter == COMMA:
            is_name = is_object[depth]
        at += 1
    return CLEAR


@kernel
def end_of_string(text: NDArray[np.uint8], at: int) -> int:
    """The place of the closing quote."""
    while at < text.size and text[at] != QUOTE:
        at += 2 if text[at] == BACKSLASH else 1
    return at


@kernel
def read_name(text: NDArray[np.uint8], at: int) -> tuple[int, np.uint64, bool]:
    """(the place of the closing quote, a hash of what is before it, whether it has no escape)."""
    hashed = FNV_START
    while at < text.size and text[at] != QUOTE:
        if text[at] == BACKSLASH:
            return at, hashed, False
        hashed = (hashed ^ np.uint64(text[at])) * FNV_PRIME
        at += 1
    return at, hashed, True


@kernel
def is_among(hashed: np.uint64, names: NDArray[np.uint64]) -> bool:
    for name in names:  # noqa: SIM110 (numba does not support any)
        if name == hashed:
            return True
    return False
