"""Runs the commands of README and docs as written, in order, in fresh folders, with real processes.

Those of README are executed as they are installed, those of all other documents forked (``tests/preloaded.py``).
"""

import gzip
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dispatch.journal.history import read_history
from tests.end_to_end.processes import ROOT, WAIT_SECONDS
from tests.pasting import INSTALLED, MARK, DocumentReader, blocks_of, missing_from
from tests.preloaded import commands_for_shells

DOCUMENTS = ("README.md", "CONTRIBUTING.md", *(f"docs/{file.name}" for file in sorted((ROOT / "docs").glob("*.md"))))
LINES = 3000
SCHEMA = "".join(f'[[tables]]\nname = "{name}"\n' for name in ("user", "item", "hour"))
STORIES = (
    ("README.md",),
    (
        "docs/tutorial.md",
        "docs/operations.md",
        "docs/serving.md",
        "docs/client.md",
        "docs/dashboard.md",
        "docs/api.md",
        "docs/export.md",
    ),
    ("docs/labels.md",),
    ("docs/kafka.md",),
    ("docs/schemas.md", "docs/policies.md"),
    ("docs/quality.md",),
    ("docs/learner.md",),
    ("docs/plugins.md",),
)
"""Documents that are read in one folder, one after the other, because they use the same run."""
EXECUTED = "README.md"
NEEDED = {"docs/kafka.md": ("java", "mvn", "kcat")}
"""Programs that commands of a story call."""


@contextmanager
def commands_of(story: tuple[str, ...], folder: Path) -> Iterator[Path]:
    """The folder with the program ``freshet`` that the commands of a story call."""
    if EXECUTED in story:
        yield INSTALLED
        return
    with commands_for_shells(folder) as commands:
        yield commands


def own_environment(place: Path, commands: Path) -> None:
    """What a reader has in .venv."""
    if commands == INSTALLED:
        (place / ".venv").symlink_to(ROOT / ".venv")
        return
    (place / ".venv" / "bin").mkdir(parents=True)
    (place / ".venv" / "bin" / "activate").write_text(f". {INSTALLED}/activate\nexport PATH={commands}:$PATH\n")


def own_files(place: Path) -> None:
    """The files of a reader: a click log, its schema, and a file of Criteo's."""
    (place / "mine.toml").write_text(f'name = "mine"\n{SCHEMA}')
    with (place / "clicks.jsonl").open("w") as file:
        for number in range(LINES):
            fields = {"user": f"u{number % 50}", "item": number % 60, "hour": number % 24}
            event = {"event_time": 1731600000.25 + number, "label": int(number % 3 == 0), "fields": fields}
            file.write(json.dumps(event) + "\n")
    rows = [criteo_row(number) for number in range(12_288)]
    (place / "train.txt").write_text("".join(rows[:400]))
    (place / "train.tsv.gz").write_bytes(gzip.compress("".join(rows).encode(), 1))


def criteo_row(number: int) -> str:
    numbers = [str(number % (7 + place)) for place in range(13)]
    texts = [f"{(number * (place + 1)) % 2999:08x}" for place in range(26)]
    return "\t".join([str(int(number % 4 == 0)), *numbers, *texts]) + "\n"


def wait_for_samples(place: Path) -> None:
    """Waits until the events are trained, as a reader would."""
    (journal,) = place.glob("runs/*/journal")
    deadline = time.monotonic() + WAIT_SECONDS
    while (trained := read_history(journal).samples) < LINES:
        assert time.monotonic() < deadline, f"{trained} of {LINES} events were trained"
        time.sleep(0.05)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_of_commands_says_whether_it_is_run(document: str) -> None:
    assert [block.text for block in blocks_of(document) if not MARK.fullmatch(block.mark)] == []


def test_every_document_with_a_block_that_is_run_is_read() -> None:
    run = [each for each in DOCUMENTS if any(not block.argument("not run") for block in blocks_of(each))]
    assert sorted(run) == sorted(document for story in STORIES for document in story)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: Path(story[0]).stem)
def test_the_commands_of_the_documents_work_as_printed(story: tuple[str, ...], tmp_path: Path) -> None:
    if lacking := [each for each in NEEDED.get(story[0], ()) if shutil.which(each) is None]:
        pytest.skip(f"{', '.join(lacking)} not installed")
    with commands_of(story, tmp_path) as commands:
        reader = DocumentReader(tmp_path, commands)
        own_environment(reader.here, commands)
        own_files(reader.here)

        def after_start(command: str) -> None:
            if "produce" in command:
                wait_for_samples(reader.here)

        try:
            for document in story:
                reader.read(document, after_start)
                reader.interrupt_all_but("freshet up")
        finally:
            reader.close()


# ── what a document shows ─────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        ("│ trained 20,000 samples, 1.6 s │\n", []),
        ("...\ntrained 1 samples, 12.2k s\n", []),
        ("left 3 events\n", ["left 0 events"]),
        ('{"id":"ab","items":[{"0":{"offset":1}}],"text":"stops after step 628"}\n', []),
        ('{…,"text":"stops after step 628",…}\n', []),
        ('{…,"text":"stops at once"}\n', ["stops at once"]),
        ('{"id":"ab"}\n', ["0", "items", "offset", "text"]),
        ('{…,"name":1}\n', ["name"]),
    ],
)
def test_what_a_document_shows_must_be_printed_but_for_numbers_and_names(shown: str, missing: list[str]) -> None:
    printed = '  trained  7 samples, 0.25 s\n{"id":"x","items":[{"1":{"offset":4}}],"text":"stops after step 7"}\n'
    assert missing_from(printed, shown) == missing


def test_lines_in_another_order_are_missed() -> None:
    assert missing_from("one\ntwo\n", "two\none\n") == ["one"]
