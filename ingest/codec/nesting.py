"""How deeply JSON may be nested, told before it is parsed.

Parsers recurse, and how deep they get depends on their caller's stack: without a limit of its own, the same event could
be trained by one process and rejected by another. An event of a schema is 3 deep (event, fields, a list); MOST_DEPTH
leaves what newer devices add plenty of room, and is a small part of the stack that any parser has.
"""

import re

MOST_DEPTH = 64
"""objects and lists around any value"""
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_BRACKETS = re.compile(rb"[^][{}]+")


def is_too_deep(payload: bytes) -> bool:
    """Whether more than MOST_DEPTH objects and lists are open at one place; of bytes that need not be JSON.

    The reference of the kernel in ``ingest.codec.structure``, for those who look at few events.
    """
    if payload.count(b"[") + payload.count(b"{") <= MOST_DEPTH:
        return False
    depth = 0
    for bracket in _BRACKETS.sub(b"", _STRINGS.sub(b"", payload)):
        depth = depth + 1 if bracket in b"[{" else max(0, depth - 1)
        if depth > MOST_DEPTH:
            return True
    return False
