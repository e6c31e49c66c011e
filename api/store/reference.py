"""Generates docs/sql.md from the tables, so that it stays correct."""

import ast
import sys
from pathlib import Path

from sqlalchemy import Column

from api.store import tables
from api.store.tables import ALL_TABLES
from infra.web.store import tables as shared_tables

HEAD = """# Tables

The control plane stores these tables in a SQLite file or in PostgreSQL. The journal of a run is the source of truth:
all tables except commands, audit and tokens are read from it, in one transaction with the cursor that they reach.
Times are seconds since 1970. The database is migrated to the newest schema whenever it is opened.

This page is printed by `python -m api.store.reference`.
"""


def tables_page() -> str:
    """All tables with their columns, in Markdown."""
    files = (tables.__file__, shared_tables.__file__)
    nodes = [node for file in files for node in ast.parse(Path(file).read_text()).body]
    return HEAD + "".join(_section(node) for node in nodes if isinstance(node, ast.ClassDef) and _name(node))


def _name(node: ast.ClassDef) -> str:
    """The name of the table that a class describes; empty if it describes none."""
    found = [line.value for line in node.body if isinstance(line, ast.Assign) and "tablename" in ast.unparse(line)]
    return str(ast.literal_eval(found[0])) if found else ""


def _section(node: ast.ClassDef) -> str:
    table = ALL_TABLES.tables[_name(node)]
    rows = [f"| `{column.name}` | {_kind(column)} | {_note(node, column.name)} |" for column in table.columns]
    return "\n".join(
        [f"\n## {table.name}\n", f"{ast.get_docstring(node)}\n", "| column | type | |", "|---|---|---|", *rows, ""]
    )


def _kind(column: "Column[object]") -> str:
    notes = [
        str(column.type).lower(),
        *(["key"] if column.primary_key else []),
        *(["or null"] if column.nullable else []),
    ]
    return ", ".join(notes)


def _note(node: ast.ClassDef, column: str) -> str:
    """The docstring under a column's definition."""
    for line, following in zip(node.body, node.body[1:], strict=False):
        is_column = isinstance(line, ast.AnnAssign) and ast.unparse(line.target) == column
        if is_column and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            return " ".join(str(following.value.value).split())
    return ""


if __name__ == "__main__":
    sys.stdout.write(tables_page())
