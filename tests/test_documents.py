"""What the documents name must exist: paths, links, commands with their options, settings, variables, make targets."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from infra.cli.main import app
from infra.run.reference import sections, settings_page
from infra.run.settings import NOT_SETTINGS, Settings

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("ingest", "dispatch", "trainer", "ps", "api", "serving", "infra", "tests", "alembic", "docs", "benchmarks")
PAGES = tuple(f"docs/{file.name}" for file in sorted((ROOT / "docs").glob("*.md")))
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", *PAGES)
PATH = re.compile(rf"\b(?:{'|'.join(FOLDERS)})/[\w./-]*\w|\b[A-Z]+\.md\b")
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")
COMMAND = re.compile(r"(?:^|[\s(|])freshet +([a-z][^|&#;)\n]*)", re.MULTILINE)
TARGET = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*make +([a-z]+)", re.MULTILINE)
SETTING = re.compile(r"(?<![\w./-])([a-z]+)\.([a-z_]+)\b(?![./(])")
VARIABLE = re.compile(r"\bFRESHET_\w+")
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
RULE = re.compile(r"\|(?:\s*:?-+:?\s*\|)+")

each_document = pytest.mark.parametrize("document", DOCUMENTS)


@cache
def text_of(document: str) -> str:
    return (ROOT / document).read_text()


def code(document: str) -> list[str]:
    """Blocks of code, with continued lines joined; then text in backquotes, which may be wrapped."""
    text = text_of(document)
    blocks = [block.replace("\\\n", " ") for block in BLOCK.findall(text)]
    return blocks + [" ".join(span.split()) for span in SPAN.findall(BLOCK.sub("", text))]


def commands(document: str) -> Iterator[list[str]]:
    """The arguments of every freshet command that a document shows."""
    for piece in code(document):
        for arguments in COMMAND.findall(piece):
            yield shlex.split(arguments)


@cache
def known_settings() -> dict[str, set[str]]:
    return {section: set(fields) for section, fields in sections()}


def is_setting(name: str) -> bool:
    section, _, inner = name.rpartition(".")
    return inner in known_settings().get(section, set())


@cache
def command_line() -> Any:
    """The command ``freshet`` with everything below it, which takes a tenth of a second to put together."""
    return typer.main.get_command(app)


def wrong_arguments(arguments: list[str]) -> list[str]:
    """Arguments that the command line would reject: an unknown command, option, or setting after --set."""
    command = command_line()
    words = list(arguments)
    while words and (inner := getattr(command, "commands", None)):
        if words[0] not in inner:
            return [words[0]]
        command = inner[words.pop(0)]
    known = {"--help", "-h", *(option for each in command.params for option in (*each.opts, *each.secondary_opts))}
    wrong = [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
    given = [after for word, after in pairwise(words) if word == "--set"]
    return wrong + [setting for setting in given if not is_setting(setting.partition("=")[0])]


@each_document
def test_every_row_of_a_table_has_a_heading(document: str) -> None:
    tables = [table.splitlines() for table in TABLE.findall(BLOCK.sub("", text_of(document)))]
    assert [table[0] for table in tables if len(table) < 3 or not RULE.fullmatch(table[1])] == []


@each_document
def test_every_path_a_document_names_exists(document: str) -> None:
    named = set(PATH.findall(text_of(document)))
    near = {"", "docs"} if document.startswith("docs/") else {""}
    assert [path for path in sorted(named) if not any((ROOT / folder / path).exists() for folder in near)] == []


@each_document
def test_every_link_leads_to_a_file(document: str) -> None:
    linked = LINK.findall(text_of(document))
    assert [link for link in linked if not ((ROOT / document).parent / link).exists()] == []


def test_the_readme_leads_to_the_index_which_links_to_every_page() -> None:
    assert set(LINK.findall(text_of("README.md"))) >= {"docs/README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"}
    linked = {f"docs/{link}" for link in LINK.findall(text_of("docs/README.md"))}
    assert linked >= set(PAGES) - {"docs/README.md"}


@each_document
def test_every_command_exists_with_its_options(document: str) -> None:
    shown = list(commands(document))
    assert [(arguments, wrong) for arguments in shown if (wrong := wrong_arguments(arguments))] == []


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ("up --set stream.batch=1 --kafka", []),
        ("bench train --repeat 3", []),
        ("bench", []),
        ("upp", ["upp"]),
        ("bench trains", ["trains"]),
        ("up --cafka", ["--cafka"]),
        ("up --set stream.bach=1", ["stream.bach=1"]),
    ],
)
def test_a_wrong_command_would_be_found(arguments: str, wrong: list[str]) -> None:
    assert wrong_arguments(arguments.split()) == wrong


def test_the_readme_shows_what_a_newcomer_needs() -> None:
    shown = {" ".join(arguments[:1]) for arguments in commands("README.md")}
    assert shown >= {"init", "check", "train", "predict", "up", "produce", "demo", "dead-letters", "bench"}
    assert sum(len(list(commands(document))) for document in DOCUMENTS) > 50


@each_document
def test_every_setting_exists(document: str) -> None:
    known = known_settings()
    named = {found for found in SETTING.findall(text_of(document)) if found[0] in known}
    files = {"md", "py", "toml", "log", "json", "safetensors"}
    assert [found for found in sorted(named) if found[1] not in known[found[0]] | files] == []


@each_document
def test_every_settings_file_shown_can_be_used(document: str) -> None:
    for file in re.findall(r"^```toml\n(.*?)^```", text_of(document), re.DOTALL | re.MULTILINE):
        Settings.model_validate(tomllib.loads(file))


@each_document
def test_every_variable_exists(document: str) -> None:
    known = set(NOT_SETTINGS)
    for section, names in known_settings().items():
        known |= {f"FRESHET_{section}__{name}".upper() if section else f"FRESHET_{name}".upper() for name in names}
    assert set(VARIABLE.findall(text_of(document))) - known == set()


@each_document
def test_every_make_target_exists(document: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {target for piece in code(document) for target in TARGET.findall(piece)} <= targets


def test_the_page_of_settings_is_current() -> None:
    assert text_of("docs/settings.md") == settings_page() + "\n", "run: freshet settings --markdown > docs/settings.md"
    assert {name for name, _ in sections()} == {"", *Settings.model_fields} - set(dict(sections())[""])


def test_every_folder_of_the_tree_exists() -> None:
    (tree,) = re.findall(r"```\n(ingest/ .*?)```", text_of("ARCHITECTURE.md"), re.DOTALL)
    folder, seen = "", 0
    for line in tree.splitlines():
        inner, name = re.findall(r"^( *)([\w-]+)/ ", line)[0]
        folder = folder if inner else name
        assert (ROOT / folder / (name if inner else "")).is_dir(), line
        seen += 1
    assert seen > 20


def test_continuous_integration_runs_on_every_python_that_is_supported() -> None:
    job = yaml.safe_load(text_of(".github/workflows/test.yml"))["jobs"]["test"]
    supported = re.findall(r"3\.\d+", tomllib.loads(text_of("pyproject.toml"))["project"]["requires-python"])
    first, beyond = (int(version.removeprefix("3.")) for version in supported)
    assert job["strategy"]["matrix"]["python"] == [f"3.{minor}" for minor in range(first, beyond)]
    assert job["steps"][-1]["run"] == ".ci/run"


def test_the_hooks_of_commits_are_the_checks() -> None:
    (local,) = yaml.safe_load(text_of(".pre-commit-config.yaml"))["repos"]
    programs = {Path(hook["entry"].split()[0]).name for hook in local["hooks"]}
    assert programs == set(re.findall(r"\$\(BIN\)/(ruff|mypy|lint-imports)", text_of("Makefile")))
