"""Predictions of a file through a server that accepts little at once, and what is written of them."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from infra.base.process import Stop
from infra.cli.first.scored_rows import open_rows
from infra.cli.first.scorers import Scored, ServerScorer
from infra.cli.first.train import remove_unfinished
from infra.cli.steer.client import ApiClient
from infra.run.settings import load_settings
from ingest.filling import fill_topic
from tests.clicks import click_rows, write_clicks
from tests.infra.cli.conftest import Invoke
from tests.serving.conftest import run, server

__all__ = ["run", "server"]


@pytest.fixture
def scorer(server: object) -> Iterator[ServerScorer]:
    address, token = server.address, server.token  # type: ignore[attr-defined]
    with ApiClient(address, token) as client:
        yield ServerScorer(client)


def test_events_are_sent_in_parts_that_a_server_takes(scorer: ServerScorer) -> None:
    events = [json.dumps({"label": 1, "fields": {"user": f"u{number}"}}).encode() for number in range(250)]
    scored = scorer.score([*events[:200], b"{", b'{"fields": {"user": [1]}}', *events[200:]])
    assert [place for place, problem in enumerate(scored.problems) if problem] == [200, 201]
    assert np.flatnonzero(np.isnan(scored.probabilities_B)).tolist() == [200, 201]
    assert scored.labels_B.tolist() == [1] * 200 + [-1, -1] + [1] * 50


def test_a_file_has_its_name_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    scored = Scored(np.array([0.5, np.nan]), np.array([1, -1], np.int8), ["", "a, reason"])
    with open_rows(path) as rows:
        rows.write(7, scored)
        assert not path.exists()
    assert path.read_text() == 'row,probability,label,problem\n7,0.5,1,\n8,,,"a, reason"\n'
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("none.csv",), "no file at none.csv"),
        (("a.csv", "-o", "a.csv"), "a.csv exists"),
        (("a.csv", "-o", "out.xls", "--url", "http://127.0.0.1:1"), "expected one of .csv, .parquet, .jsonl"),
        (("a.csv", "--url", "http://127.0.0.1:1", "--run", "mine"), "expected one model"),
        (("a.csv", "--url", "nowhere"), "correct --url"),
    ],
)
def test_wrong_arguments_are_one_clear_line(
    arguments: tuple[str, ...], told: str, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("user\nu1\n")
    monkeypatch.setenv("FRESHET_TOKEN", "secret")
    done = invoke("predict", *arguments)
    assert done.returncode in (1, 2)
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_an_interrupted_command_has_read_is_removed_and_nothing_else(tmp_path: Path) -> None:
    file = write_clicks(tmp_path / "clicks.jsonl", click_rows(20))
    settings = load_settings(
        None, [f"stream.folder={tmp_path / 'log'}", "stream.schema_name=movielens"], folder=tmp_path
    )
    assert fill_topic(file, settings.event_schema, settings.stream, Stop()).good == 20
    (tmp_path / "log" / "mine").mkdir()
    remove_unfinished(settings)
    assert [each.name for each in (tmp_path / "log").iterdir()] == ["mine"]
