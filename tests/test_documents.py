"""What the documents name must exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("ingest", "dispatch", "trainer", "ps", "api", "infra", "tests", "alembic", "docs", "benchmarks")


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "docs/benchmarks.md"])
def test_every_path_a_document_names_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    named = set(re.findall(rf"(?:{'|'.join(FOLDERS)})/[\w./-]*\w|\w+\.(?:toml|md|txt)\b", text))
    assert named, "a document without a single path is not what this test was made for"
    local = {path for path in named if "freshet.toml" not in path}
    assert [path for path in sorted(local) if not (ROOT / path).exists() and not (ROOT / "docs" / path).exists()] == []


def test_the_readme_shows_every_command() -> None:
    text = (ROOT / "README.md").read_text()
    for command in ("make demo", "make test", "freshet up", "freshet produce", "freshet bench", "freshet dead-letters"):
        assert command in text
