"""One word for one thing: retired words do not come back in code, messages, commands or documents.

ARCHITECTURE.md lists the words in use.
"""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.test_structure import PACKAGES, ROOT

RETIRED = {
    "cut": r"(?<!power )(?<![\w.])(?!_?cut_(?:off|short))(?:\w*_)?[Cc]uts?(?:_\w*)?\b"
    r"(?! (?:off|short|into|down|out)\b)",
    "retell": r"\bretell\w*",
    "rage": r"\brage\b",
    "CLEARLY": r"\bCLEARLY\b",
    "version of the journal": r"[Vv]ersions? of (?:the|a|its|this|their) (?:run's )?journals?\b|journal's version",
    "given on a version": r"[Vv]ersion (?:that )?it (?:was given on|is based on)|given on (?:an? )?(?:\w+ )?version",
    "journal.version": r"\b(?:_?journal|_?writer|tail|rest)\.version\b|journal_version|lag_versions",
    "Versioned": r"\b(?:Versioned|VersionOutdated|AfterVersion)\b",
    "version of the model": r"\bversion_of\b|\bversion_before\b|\bcopy\.version\b|\b(?:serving|feed)[./]versions\b"
    r"|\b(?:NoOlder|Read|Judged|Seen)Versions?\b|\bVersion(?:Reading|Window)\b|\b(?:served|good|held) versions?\b"
    r"|\b[Vv]ersions? (?:of the model|held back|is held|are held|taken|that (?:is|are) (?:served|held|wanted|pinned))\b"
    r"|\bversions are good\b|\b(?:the first|no) version (?:is|has)\b",
    "version of a row": r"\bversions_[A-Z]\b|\bstore\.versions\b|\bverify[./]versions\b|\bcheck_versions\b"
    r"|\b[Vv]ersions? of (?:a |all |each |every |its |the )?rows?\b|\brow's version\b"
    r"|\bvalue, state(?: and|,) version\b",
}
"""The pattern that is searched for, by the retired word.

A cut is a checkpoint, or else it is truncated, split or shortened. A position in a journal is a cursor, a
version of the model is a snapshot, and a version of a row is its last step.
"""
EARLIER_RELEASES = {
    "CHANGELOG.md": "says what was renamed",
    "alembic/versions": "tables of earlier releases",
    "api/routes/history.py": "redirects from the earlier path",
    "dispatch/journal/records.py": "tags on disk",
    "docs/kafka.md": "a header of the topic",
    "docs/operations.md": "says where runs of earlier releases keep them",
    "infra/cli/checkpoints.py": "takes the earlier command, with a notice",
    "infra/cli/main.py": "takes the earlier command, with a notice",
    "infra/cli/snapshots.py": "takes the earlier option, with a notice",
    "infra/run/folder.py": "finds the folder of earlier runs",
    "infra/run/settings.py": "takes the earlier settings, with a notice",
    "ps/checkpoints/served.py": "fields on disk",
    "ps/protocol.py": "fields on disk",
    "ingest/kafka/letter_topic.py": "a header of the topic",
    "ingest/log": "truncates files",
}
"""Where a retired word has to stay, and why."""


@cache
def files() -> list[str]:
    """Files that a reader or user sees: code, settings and documents, without tests."""
    inside = [file for package in (*PACKAGES, "docs") for file in (ROOT / package).rglob("*")]
    names = [file.relative_to(ROOT).as_posix() for file in (*ROOT.glob("*.*"), *inside)]
    return [
        name
        for name in sorted(names)
        if Path(name).suffix in {".py", ".md", ".toml", ".yaml", ".sh"}
        if not name.startswith(tuple(EARLIER_RELEASES))
    ]


@cache
def lines_of(name: str) -> list[str]:
    return (ROOT / name).read_text().splitlines()


@pytest.mark.parametrize("word", RETIRED)
def test_a_word_that_was_given_up_is_not_used(word: str) -> None:
    pattern = re.compile(RETIRED[word])
    assert len(files()) > 500
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in files()
        for number, line in enumerate(lines_of(name), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_every_place_that_keeps_an_old_word_has_it() -> None:
    for name in EARLIER_RELEASES:
        place = ROOT / name
        inside = [place] if place.is_file() else [*place.rglob("*.py")]
        assert any(re.search(r"cut", file.read_text()) for file in inside), name
