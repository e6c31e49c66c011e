"""A run that gets no events: what is known of its workers, and how its summary calls an end that is none."""

import json
import re
from pathlib import Path

import httpx2
import pytest

from infra.base.run_folder import read_endpoint
from tests.api.serving import new_token, until
from tests.end_to_end.processes import run, start

MEASURED = r'(?m)^freshet_link_bytes_per_second\{[^}]*worker="worker-1"[^}]*\} [1-9]'


@pytest.mark.timeout(400)
def test_an_added_worker_shows_its_link_and_a_run_that_was_stopped_is_not_finished(tmp_path: Path) -> None:
    folder, database = tmp_path / "run", f"sqlite:///{tmp_path / 'api.sqlite'}"
    small = ("stream.batch=64", "dispatch.workers=1", "ps.shards=1", "rows.dim=4", "api.port=0", "run=idle")
    settings = (*small, f"api.database={database}", f"stream.folder={tmp_path / 'log'}")
    given = [part for setting in settings for part in ("--set", setting)]
    process = start("up", "--run", folder, "--json", tmp_path / "summary.json", *given)
    try:
        address = until(lambda: (folder / "endpoints" / "api").exists() and (folder / "endpoints" / "api").read_text())
        until(lambda: (folder / "endpoints" / "worker-0").exists())
        secret = new_token(database, ("read", "control"))
        api = ("--api", address, "--token", secret, "--run", "idle")
        added = run("workers", "add", "--link", "0.5", *api)
        assert added.returncode == 0, added.stderr

        def link() -> float | None:
            listed = json.loads(run("workers", "list", "--json", *api).stdout)
            return next((w["link_gbit"] for w in listed if (w["name"], w["state"]) == ("worker-1", "training")), -1.0)

        assert until(lambda: (found := link()) != -1.0 and [found]) == [0.5]
        assert "0.5" in run("workers", "list", *api).stdout
        assert run("runs", "stop", *api).returncode == 0
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, output
    assert json.loads((tmp_path / "summary.json").read_text())["exit_reason"] == "stopped"
    assert "freshet · idle · stopped" in output
    assert "finished" not in output


@pytest.mark.timeout(400)
def test_the_link_of_a_worker_without_samples_is_measured(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    small = ("stream.batch=64", "dispatch.workers=2", "ps.shards=1", "rows.dim=4", "run=idle")
    settings = (*small, "dispatch.policy=joint:elastic", f"stream.folder={tmp_path / 'log'}")
    given = [part for setting in settings for part in ("--set", setting)]
    assert run("produce", "--limit", "128", *given).returncode == 0
    process = start("up", "--no-api", "--run", folder, "--json", tmp_path / "summary.json", *given)
    try:
        address = until(lambda: read_endpoint(folder, "dispatcher.metrics"))
        until(lambda: re.search(MEASURED, httpx2.get(str(address)).text))
        process.terminate()
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, output
    workers = json.loads((tmp_path / "summary.json").read_text())["status"]["workers"]
    assert [worker["traffic"]["samples"] for worker in workers] == [128, 0]
    assert workers[1]["measured_gbit"] > 0
