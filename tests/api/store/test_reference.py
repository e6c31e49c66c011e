"""The page of tables is what the models say."""

from pathlib import Path

from api.store.reference import tables_page
from infra.web.store.tables import SqlTable


def test_the_page_of_tables_is_current() -> None:
    text = Path("docs/sql.md").read_text()
    assert text == tables_page(), "run: python -m api.store.reference > docs/sql.md"
    assert all(f"## {name}\n" in text for name in SqlTable.metadata.tables)
