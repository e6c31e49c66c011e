"""Plug-ins in packages of their own: installed, trained on two workers of which one is killed, served and exported.

The processes of that training are executed; those of the other commands are forked (tests/preloaded.py).
"""

import json
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from dispatch.journal.history import read_history
from infra.base.faults import ALLOWED, FAULT, FIRED
from infra.cli.first.plugin import TEMPLATES, write_plugin
from tests.clicks import click_rows, write_clicks
from tests.end_to_end.processes import ROOT, WAIT_SECONDS, wait_until
from tests.end_to_end.test_printed_commands import SMALL, begin, run
from tests.ports import free_port
from tests.preloaded import executing

ROWS = click_rows(700)
TRAIN = "freshet train clicks.csv --run mine --no-compare --set dispatch.workers=2"
OWN = " --set model.name=my_model --set dispatch.policy=my_policy"
TAPE = "--set stream.source=my_source --set stream.folder=tape --set stream.partitions=2"
LEARN = """
import freshet, json
learner = freshet.Learner.load("runs/mine")
print(json.dumps([float(each) for each in learner.predict_many(json.load(open("fields.json")))]))
"""


class Installed(NamedTuple):
    """A folder with a trained run, and where the package of its model is installed."""

    place: Path
    path: str
    """PYTHONPATH with the installed package."""

    def run(self, command: str, more: Mapping[str, str] | None = None, status: int = 0) -> str:
        return run(self.place, command, status, PYTHONPATH=self.path, **(more or {}))


def install(folder: Path, into: Path) -> str:
    """Builds the wheel of a package and unpacks it, as pip would; returns PYTHONPATH with it."""
    build = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=folder, capture_output=True, text=True, check=True)
    zipfile.ZipFile(folder / "dist" / done.stdout.split()[-1]).extractall(into)
    return f"{ROOT}:{into}"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = tmp_path_factory.mktemp("plugged")
    for kind in TEMPLATES:
        write_plugin(kind, place / f"my-{kind}")
        path = install(place / f"my-{kind}", place / "site")
    found = Installed(place, path)
    write_clicks(place / "clicks.csv", ROWS)
    struck = {FAULT: "worker-1:forward:step=4:kill", ALLOWED: "1"}
    with executing():
        found.run(TRAIN + OWN, {**SMALL, "FRESHET_CHECKPOINTS__SECONDS": "0.5", **struck})
    return found


def test_a_killed_worker_costs_time_and_the_run_equals_a_replay(installed: Installed) -> None:
    folder = installed.place / "runs" / "mine"
    assert "worker-1" in (folder / FIRED).read_text()
    history = read_history(folder / "journal")
    assert history.samples == len(ROWS)
    assert history.newest is not None
    assert history.newest.number > 0, "the members did not change"
    assert '"policy":"my_policy"' in (folder / "settings.json").read_text().replace(" ", "")
    told = installed.run("freshet verify --run mine --replay")  # which exits with 1 if a bit differs
    assert "replay: dense weights ok" in told


def test_a_server_the_file_and_a_learner_predict_the_same(installed: Installed) -> None:
    port = str(free_port())
    server = begin(installed.place, f"freshet serve --run mine --port {port}", PYTHONPATH=installed.path)
    token = installed.run("freshet token create --name me --scope predict --run mine").split()[0]
    try:
        wait_until(lambda: (installed.place / "runs/mine/endpoints/serve").exists(), server)
        command = f"freshet predict clicks.csv --url http://127.0.0.1:{port} --label clicked --time ts"
        installed.run(f"{command} -o served.parquet", {"FRESHET_TOKEN": token})
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=WAIT_SECONDS)
    installed.run("freshet predict clicks.csv --run mine -o own.parquet")
    served, own = (
        pq.read_table(installed.place / f"{name}.parquet")["probability"].to_pylist() for name in ("served", "own")
    )
    fields = [{name: value for name, value in row.items() if name not in ("clicked", "ts")} for row in ROWS]
    (installed.place / "fields.json").write_text(json.dumps(fields))
    program = [sys.executable, "-c", LEARN]
    learnt = subprocess.run(
        program, cwd=installed.place, env={"PYTHONPATH": installed.path}, capture_output=True, text=True, check=True
    )
    np.testing.assert_allclose(served, own, atol=1e-6)
    np.testing.assert_allclose(json.loads(learnt.stdout), own, atol=1e-6)


def test_the_export_has_the_weights_by_name_and_onnx_computes_the_same(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.run("freshet snapshots export 1 exported --run mine --onnx")
    folder = installed.place / "exported"
    about = json.loads((folder / "model.json").read_text())
    assert about["model"]["name"] == "my_model"
    monkeypatch.syspath_prepend(installed.place / "site")
    from my_model import MyModel  # type: ignore[import-not-found,unused-ignore]

    from trainer.models.plugged import ModelInputs

    weights = load_file(folder / "dense.safetensors")
    session = onnxruntime.InferenceSession(folder / "dense.onnx")
    shapes = {each.name: [5, *each.shape[1:]] for each in session.get_inputs()}
    given = {name: torch.randn(shape, generator=torch.Generator().manual_seed(1)) for name, shape in shapes.items()}
    _, vectors, dim = shapes["embeddings"]
    body = MyModel(ModelInputs(vectors, dim, shapes["dense"][1], tuple(about["model"]["mlp"])))
    body.load_state_dict({n.removeprefix("body."): w for n, w in weights.items() if n.startswith("body.")})
    hidden = body(given["embeddings"], given["dense"])
    expected = hidden @ weights["output.weight"] + weights["output.bias"] + given["wide"] @ weights["output.scales"]
    (logits,) = session.run(None, {name: tensor.numpy() for name, tensor in given.items()})
    np.testing.assert_allclose(logits, expected.detach().numpy(), atol=1e-5)


def test_a_source_is_written_to_and_trained_from(installed: Installed) -> None:
    told = installed.run(f"freshet produce --limit 300 {TAPE}")
    assert "300 events (0 bad on purpose) in 300 records to topic 'clicks' of source 'my_source'" in told
    files = sorted((installed.place / "tape" / "clicks").glob("*.jsonl"))
    assert sum(len(file.read_text().splitlines()) for file in files) == 300
    installed.run(f"freshet up --no-api --no-serve --run tape --samples 256 {TAPE}", SMALL)
    history = read_history(installed.place / "runs" / "tape" / "journal")
    assert history.samples == 256
    assert "replay: rows ok" in installed.run("freshet verify --run tape --replay")


def test_a_model_that_cannot_be_trained_is_refused_before_anything_starts(installed: Installed) -> None:
    (installed.place / "site" / "wrong.py").write_text("class Tower: ...\n")
    told = installed.run("freshet train clicks.csv --run other --set model.name=wrong:Tower", status=2)
    assert told.endswith("expected a class derived from torch.nn.Module; correct model.name, or the class")
    assert not (installed.place / "runs" / "other" / "journal").exists()
