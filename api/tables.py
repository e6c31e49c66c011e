"""The base of every SQL table. Every constraint has a name, so that the migrations in ``alembic/`` can refer to it."""

from sqlalchemy import MetaData
from sqlalchemy.orm import DeclarativeBase

NAMES = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class SqlTable(DeclarativeBase):
    """A table of the control plane."""

    metadata = MetaData(naming_convention=NAMES)
