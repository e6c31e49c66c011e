"""The tables of every process that checks tokens, and the base of all other tables; nothing about runs.

Every constraint has a name, so that the migrations in ``alembic/`` can refer to it. Times are seconds since 1970.
"""

from typing import Any

from sqlalchemy import JSON, BigInteger, Double, Index, Integer, MetaData, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class SqlTable(DeclarativeBase):
    """A table of our database."""

    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = {int: BigInteger, float: Double, dict[str, Any]: JSON, list[str]: JSON}  # noqa: RUF012


class AuditRow(SqlTable):
    """A request that changed something or was denied, or a command that did not come through the API."""

    __tablename__ = "audit"
    __table_args__ = (Index(None, "run", "id"),)

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    at: Mapped[float]
    actor: Mapped[str]
    token: Mapped[str | None]
    """Id of the token; empty: a command on the run's own socket, which only its owner can reach."""
    action: Mapped[str]
    run: Mapped[str | None]
    status: Mapped[int]
    """Status code of the answer."""
    detail: Mapped[dict[str, Any]]


class TokenRow(SqlTable):
    """A bearer token without its secret."""

    __tablename__ = "tokens"
    __table_args__ = (UniqueConstraint("hash"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    hash: Mapped[str]
    """SHA-256 of the secret."""
    scopes: Mapped[list[str]]
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]
