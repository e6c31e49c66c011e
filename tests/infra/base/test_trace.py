"""Spans of work: kept if asked for, and written when the process ends."""

import json
import subprocess
import sys
from pathlib import Path

from infra.base import trace
from tests.end_to_end.processes import ROOT

WORK = """
import sys, threading, time
from pathlib import Path
from infra.base.trace import is_traced, keep_spans, note, span, traced

@traced
def _look_up(number):
    return number + 1

keep_spans(Path(sys.argv[1]), int(sys.argv[2]))
with span("outer", 7):
    assert _look_up(1) == 2
other = threading.Thread(target=note, args=("aside", 1.0, 1.5), name="helper")
other.start()
other.join()
try:
    with span("fails"):
        raise KeyError
except KeyError:
    pass
print(is_traced())
"""


def work(file: Path, most: int) -> str:
    command = [sys.executable, "-c", WORK, str(file), str(most)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def test_a_process_writes_its_spans_when_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "trace" / "worker-3.json"
    assert work(file, 100) == "True"
    events = json.loads(file.read_bytes())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {"worker-3", "MainThread", "helper"}
    spans = {event["name"]: event for event in events if event["ph"] == "X"}
    assert list(spans) == ["look up", "outer", "aside", "fails"]
    assert spans["outer"]["args"]["step"] == 7
    assert spans["outer"]["ts"] <= spans["look up"]["ts"]
    assert spans["outer"]["dur"] >= spans["look up"]["dur"] >= 0
    assert (spans["aside"]["ts"], spans["aside"]["dur"]) == (1e6, 5e5)
    assert spans["aside"]["tid"] != spans["outer"]["tid"]


def test_only_the_newest_spans_are_kept(tmp_path: Path) -> None:
    work(tmp_path / "few.json", 2)
    events = json.loads((tmp_path / "few.json").read_bytes())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == ["aside", "fails"]


def test_a_process_that_was_not_asked_keeps_nothing(tmp_path: Path) -> None:
    assert work(tmp_path / "none.json", 0) == "False"
    assert not (tmp_path / "none.json").exists()
    assert not trace.is_traced()
