"""Pages of long lists, for any table.

A page token is the key of the last row of a page, so pages neither repeat nor miss a row when rows are added meanwhile.
It is opaque: a client passes it back unchanged.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Select, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import InstrumentedAttribute

from infra.web.errors import BadPageToken
from infra.web.store.rows import Page
from infra.web.store.tables import SqlTable

RowT = TypeVar("RowT")
MOST_ROWS = 1000
"""Most rows in a page."""
Key = Sequence[InstrumentedAttribute[Any]]


def columns(kind: type[Any], table: type[SqlTable]) -> Select[Any]:
    """Returns a query for the columns that a row of the answer has: a dataclass or a named tuple."""
    return select(*(getattr(table, name) for name in kind.__annotations__))


def to_row(kind: type[RowT], found: Any) -> RowT:
    """Makes a row of the answer from a row of SQL with the same ``columns``; lists in JSON become tuples."""
    return kind(*[tuple(value) if isinstance(value, list) else value for value in found])


async def read_page(
    connection: AsyncConnection,
    kind: type[RowT],
    query: Select[Any],
    key: Key,
    after: str | None,
    limit: int,
    newest_first: bool = True,
) -> Page[RowT]:
    """Returns the rows of a query that follow a page token, in the order of a unique key."""
    limit = max(1, min(limit, MOST_ROWS))
    if after is not None:
        query = query.where(_follows(key, decode_page_token(after, key), newest_first))
    query = query.order_by(*(column.desc() if newest_first else column.asc() for column in key)).limit(limit + 1)
    found = (await connection.execute(query)).all()
    last = found[limit - 1] if len(found) > limit else None
    token = None if last is None else encode_page_token([last._mapping[column.key] for column in key])
    return Page(tuple(to_row(kind, row) for row in found[:limit]), token)


def _follows(key: Key, values: Sequence[Any], newest_first: bool) -> ColumnElement[bool]:
    here = tuple_(*key)
    return here < tuple_(*values) if newest_first else here > tuple_(*values)


def encode_page_token(values: Sequence[Any]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(values)).rstrip(b"=").decode()


def decode_page_token(token: str, key: Key) -> list[Any]:
    """Returns the values of a key; raises BadPageToken for a token that no page returned."""
    wrong = BadPageToken(
        "the token of a page cannot be read; expected one that a page gave as its next; begin without one"
    )
    try:
        text = base64.b64decode(token.encode() + b"=" * (-len(token) % 4), altchars=b"-_", validate=True)
        values = msgspec.json.decode(text, type=list[int | float | str])
    except (binascii.Error, ValueError) as error:
        raise wrong from error
    if len(values) != len(key) or any(not _fits(column, value) for column, value in zip(key, values, strict=True)):
        raise wrong
    return values


def _fits(column: InstrumentedAttribute[Any], value: Any) -> bool:
    wanted = column.type.python_type
    if wanted is str:
        return isinstance(value, str) and "\x00" not in value
    if wanted is int:
        return isinstance(value, int) and -(2**63) <= value < 2**63
    return isinstance(value, int | float)
