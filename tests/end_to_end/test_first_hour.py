"""A file of clicks becomes a run that is continued, served and exported by the commands that are printed."""

import json
import re
import signal
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

from dispatch.journal.history import read_history
from infra.cli.first.constant import constant_quality
from tests.clicks import CLICKED, click_rows, write_clicks
from tests.end_to_end.processes import WAIT_SECONDS, wait_until
from tests.end_to_end.test_printed_commands import SMALL, begin, run, samples_in
from tests.ports import free_port

ROWS = click_rows(700)
PRINTED = re.compile(r"^ *[a-z ]+:  (freshet .*)$", re.MULTILINE)


class Trained(NamedTuple):
    """A run over a file."""

    place: Path
    printed: str
    commands: dict[str, str]
    """The commands that were printed, by their second word."""

    @property
    def folder(self) -> Path:
        return self.place / "runs" / "mine"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    place = tmp_path_factory.mktemp("first")
    file = write_clicks(place / "clicks.csv", ROWS)
    with file.open("a") as lines:
        lines.write("1,0,u1\n")
    process = begin(place, "freshet train clicks.csv --run mine", **SMALL)
    printed, _ = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, printed
    commands = {command.split()[1]: command for command in PRINTED.findall(printed)}
    return Trained(place, " ".join(printed.split()), commands)


def test_the_whole_file_is_trained_once_and_compared_with_a_constant(trained: Trained) -> None:
    assert samples_in(trained.folder) == len(ROWS)
    assert "trained 700 events" in trained.printed
    assert "1 event rejected (1 wrong type)" in trained.printed
    whole, _ = constant_quality(np.array([row[CLICKED] for row in ROWS], np.float32), 0)
    assert f"a constant, the click rate so far {whole.logloss:.4f}" in trained.printed


def test_the_run_is_stopped_and_not_over(trained: Trained) -> None:
    history = read_history(trained.folder / "journal")
    assert (history.begun is not None, history.ended) == (True, None)


def test_the_printed_prediction_and_export_work(trained: Trained) -> None:
    told = run(trained.place, trained.commands["predict"])
    assert "700 predictions for 701 events, written to predictions.csv 1 event without one" in told
    assert len((trained.place / "predictions.csv").read_text().splitlines()) == 702
    exported = run(trained.place, trained.commands["snapshots"])
    assert "rows is in mine-model" in exported
    assert json.loads((trained.place / "mine-model" / "model.json").read_text())["schema"]


def test_a_server_predicts_what_the_snapshot_does(trained: Trained) -> None:
    port = str(free_port())
    server = begin(trained.place, f"{trained.commands['serve']} --port {port}")
    token = run(trained.place, trained.commands["token"]).split()[0]
    try:
        wait_until(lambda: (trained.folder / "endpoints" / "serve").exists(), server)
        options = "--label clicked --time ts -o served.parquet"
        command = f"freshet predict clicks.csv --url http://127.0.0.1:{port} {options}"
        run(trained.place, command, FRESHET_TOKEN=token)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate()
    run(trained.place, "freshet predict clicks.csv --run mine -o own.parquet")
    served, own = (pq.read_table(trained.place / f"{name}.parquet") for name in ("served", "own"))
    assert served["label"].to_pylist() == own["label"].to_pylist() == [*(row[CLICKED] for row in ROWS), None]
    problems = own["problem"].to_pylist()
    assert [bool(problem) for problem in problems] == [False] * len(ROWS) + [True]
    chances = [table["probability"].to_pylist()[:-1] for table in (served, own)]
    np.testing.assert_allclose(chances[0], chances[1], atol=1e-6)


def test_the_run_is_trained_further_on_another_file_and_by_up(trained: Trained) -> None:
    more = [json.dumps({"event_time": 1, "label": 1, "fields": {**row}}) for row in ROWS[:100]]
    (trained.place / "more.jsonl").write_text("\n".join(more))
    assert "trained 100 events" in run(trained.place, "freshet train more.jsonl --run mine")
    assert samples_in(trained.folder) == len(ROWS) + 100
    run(trained.place, "freshet produce more.jsonl --dataset jsonl --run mine")
    run(trained.place, f"{trained.commands['up']} --no-api --no-serve --samples {len(ROWS) + 200}")
    assert samples_in(trained.folder) == len(ROWS) + 200


@pytest.mark.parametrize(
    ("text", "options", "told"),
    [
        ("user,clicked\nu1,1\nu2,1\n", "", "'clicked' is 1 in all 2 events"),
        ("user,clicked\nu1,1\nu2,0\n", "--schema criteo", "none of 2 events of clicks.csv fits the schema"),
        ("user,clicked\nu1,1\nu2,0\n", "--schema criteo --label clicked", "write them into [file]"),
        ("user,clicked\nu1,1\nu2,0\n", "--set stream.source=kafka", "expected the embedded log"),
    ],
)
def test_a_file_that_cannot_be_trained_is_one_line(text: str, options: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "clicks.csv").write_text(text)
    printed = begin(tmp_path, f"freshet train clicks.csv {options}")
    output, _ = printed.communicate(timeout=100)
    assert printed.returncode in (1, 2)
    assert told in output.splitlines()[-1]
