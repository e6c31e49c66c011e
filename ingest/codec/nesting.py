"""How deeply JSON may be nested, checked before it is parsed.

Parsers recurse, and how deep they get depends on their caller's stack: without a limit, one process could train an
event that another rejects. An event needs a depth of 3 (event, fields, a list); MOST_DEPTH leaves plenty of room for
what newer devices add, and is a small part of the stack of any parser.
"""

import re

MOST_DEPTH = 64
"""Most nested objects and lists around any value."""
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_BRACKETS = re.compile(rb"[^][{}]+")


def is_too_deep(payload: bytes) -> bool:
    """Whether more than MOST_DEPTH objects and lists are open at one place; the bytes need not be JSON.

    This is the reference of the kernel in ``ingest.codec.structure``, for callers with few events.
    """
    if payload.count(b"[") + payload.count(b"{") <= MOST_DEPTH:
        return False
    depth = 0
    for bracket in _BRACKETS.sub(b"", _STRINGS.sub(b"", payload)):
        depth = depth + 1 if bracket in b"[{" else max(0, depth - 1)
        if depth > MOST_DEPTH:
            return True
    return False
