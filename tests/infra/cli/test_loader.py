"""The process that the dispatcher forks to load."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from infra.base.errors import ProcessFailed
from infra.cli.daemons import fork_loader
from infra.run.settings import load_settings
from ingest.batches.job import LoaderJob

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def test_it_logs_as_other_processes_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("ingest.opening.open_source", fail)
    settings = load_settings(None, ["telemetry.log_format=json"], run="mine", folder=tmp_path)
    loader = fork_loader(settings).begin(LoaderJob(settings.event_schema, 8))
    with closing(loader), pytest.raises(ProcessFailed, match=r"ZeroDivisionError\('a bug'\); see the log"):
        loader.next(60)
    written = "".join(capfd.readouterr())
    (logged,) = [json.loads(line) for line in written.splitlines() if line.startswith("{")]
    assert (logged["process"], logged["run"], logged["event"]) == ("loader", "mine", "the loader failed")
    assert "ZeroDivisionError" in logged["exception"]
