"""What the documents name must exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("ingest", "dispatch", "trainer", "ps", "api", "infra", "tests", "alembic", "docs", "benchmarks")
PATH = re.compile(rf"\b(?:{'|'.join(FOLDERS)})/[\w./-]*\w|\b[A-Z]+\.md\b")


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md"])
def test_every_path_a_document_names_exists(document: str) -> None:
    named = set(PATH.findall((ROOT / document).read_text()))
    assert len(named) > 3
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_every_path_of_the_readme_s_tree_exists() -> None:
    (tree,) = re.findall(r"```\n(ingest/ .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    folder, seen = "", 0
    for line in tree.splitlines():
        head = re.match(r"(\w+)/", line)
        folder = head.group(1) if head else folder
        names = re.findall(r"[\w*]+\.py", line) + (re.findall(r"^  (\w+)/ ", line))
        for name in names:
            assert list((ROOT / folder).glob(name)), f"{folder}/{name}"
            seen += 1
    assert seen > 20


def test_the_readme_shows_every_command() -> None:
    text = (ROOT / "README.md").read_text()
    for command in ("make demo", "make test", "freshet up", "freshet produce", "freshet bench", "freshet dead-letters"):
        assert command in text
