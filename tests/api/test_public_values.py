"""Public JSON is typed: numbers are numbers, and null says that something is not there.

A sentinel is a value that stands for none, such as -1 for a cursor or empty text for a worker. Prose may be empty: a
reason that nobody gave is no words. Cursors and ids are opaque, whatever they look like.
"""

import json
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from api.app import create_app
from dispatch.journal.records import Commanded
from tests.api.dispatcher import PretendDispatcher
from tests.api.serving import Served, until

PROSE = {"reason", "text", "alpha_reason", "actor"}
OPAQUE = {"next", "id", "key", "version", "digest"}
NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?|true|false|null")
RUN_PATHS = ("", "/alpha", "/workers", "/settings", "/steps", "/generations", "/checkpoints", "/faults", "/commands")
COMMANDS = [
    ("POST", "/pause", None),
    ("POST", "/resume", {"reason": ""}),
    ("PUT", "/alpha", {"value": 0.25}),
    ("PUT", "/alpha", {"value": "auto"}),
    ("PATCH", "/settings", {"skip_above": 1_000_000}),
    ("PATCH", "/settings", {"skip_above": "none"}),
    ("PATCH", "/settings", {"deadline": False}),
    ("PATCH", "/settings", {"policy": "joint"}),
    ("PATCH", "/workers/worker-0", {"link_gbit": 0.5}),
    ("PATCH", "/workers/worker-0", {"link_gbit": "unknown"}),
    ("PATCH", "/workers/worker-0", {"shares": {"least": 0.5, "largest": 2}}),
    ("POST", "/workers/nobody/drain", {}),
    ("POST", "/commands", {"verb": "checkpoint"}),
]


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value of a JSON document, with the names on the way to it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, (*path, str(name)))
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, path)
    else:
        yield path, value


def wrong_values(document: Any) -> list[tuple[str, Any]]:
    """Sentinels and numbers as text."""
    return [(".".join(path), value) for path, value in leaves(document) if is_wrong(path[-1] if path else "", value)]


def is_wrong(name: str, value: Any) -> bool:
    if isinstance(value, str):
        is_sentinel = not value and name not in PROSE
        return is_sentinel or (name not in OPAQUE and NUMBER.fullmatch(value) is not None)
    return not isinstance(value, bool) and isinstance(value, int | float) and value < 0


def test_wrong_values_are_found() -> None:
    found = wrong_values({"expected": -1, "worker": "", "items": [{"value": "0.25"}], "reason": "", "next": "50"})
    assert [path for path, _ in found] == ["expected", "worker", "items.value"]


def schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every property of every schema of the document, by its path."""
    for name, schema in create_app().openapi()["components"]["schemas"].items():
        for field, described in schema.get("properties", {}).items():
            for kind in described.get("anyOf", [described]):
                yield f"{name}.{field}", described | kind


def test_the_earlier_name_of_the_cursor_is_marked_as_deprecated() -> None:
    described = dict(schemas())
    for name in (
        "RunOutline",
        "RunDetails",
        "CommandReading",
        "GenerationReading",
        "CheckpointReading",
        "FaultReading",
    ):
        assert described[f"{name}.version"]["deprecated"]
        assert "deprecated" not in described[f"{name}.cursor"]


def test_no_schema_has_a_default_or_a_bound_that_stands_for_none() -> None:
    wrong = [
        path
        for path, schema in schemas()
        if is_wrong(path.rpartition(".")[2], schema.get("default")) or schema.get("minimum", 0) < 0
    ]
    assert wrong == []


def test_examples_in_the_document_are_typed() -> None:
    document = create_app().openapi()
    found = {name: schema.get("examples") for name, schema in document["components"]["schemas"].items()}
    assert wrong_values({name: examples for name, examples in found.items() if examples}) == []


@pytest.mark.parametrize(("method", "path", "body"), COMMANDS)
def test_the_answer_to_a_command_is_typed(api: Served, method: str, path: str, body: Any) -> None:
    answer = api.ask(method, f"/v1/runs/r{path}", body)
    assert answer.status in (200, 202, 409), answer
    assert wrong_values(answer.json) == []


@pytest.mark.parametrize("path", [*(f"/v1/runs/r{path}" for path in RUN_PATHS), "/v1/runs", "/v1/audit", "/readyz"])
def test_what_is_read_is_typed(api: Served, dispatcher: PretendDispatcher, path: str) -> None:
    dispatcher.journal.steer(Commanded(f"by-hand {path}", "link", "worker-0", 0, "", "0.5", at_seconds=1.0))
    until(lambda: api.get("/v1/audit").json["items"])
    for method, of_command, body in COMMANDS[:3]:
        api.ask(method, f"/v1/runs/r{of_command}", body)
    assert wrong_values(api.get(path).json) == []


def test_events_are_typed(api: Served, dispatcher: PretendDispatcher) -> None:
    before = dispatcher.journal.cursor
    api.ask("POST", "/v1/runs/r/pause")
    api.ask("PUT", "/v1/runs/r/alpha", {"value": 0.25})
    api.ask("PATCH", "/v1/runs/r/workers/worker-0", {"shares": {"least": 0.5, "largest": 2}})
    assert dispatcher.journal.cursor >= before + 3
    events = read_events(api, until_cursor=before + 3)
    told = [(each["worker"], each["value"]) for each in events if "verb" in each]
    assert told[-3:] == [(None, None), (None, 0.25), ("worker-0", {"least": 0.5, "largest": 2.0})]
    assert [wrong_values(event) for event in events if wrong_values(event)] == []


def read_events(api: Served, until_cursor: int) -> list[dict[str, Any]]:
    """Bodies of the run's records up to that cursor, from the first on."""
    sent = urllib.request.Request(
        f"{api.address}/v1/runs/r/events?after=0", headers={"Authorization": f"Bearer {api.token}"}
    )
    found: list[dict[str, Any]] = []
    with urllib.request.urlopen(sent, timeout=60) as lines:
        is_status = False
        for line in lines:
            is_status = line == b"event: status\n" or (is_status and not line.startswith(b"event: "))
            if line.startswith(b"data: ") and not is_status:
                found.append(json.loads(line.removeprefix(b"data: ")))
            if found and found[-1]["cursor"] >= until_cursor:
                break
    return found
