"""An exported model against the one it was made from: the program of docs/export.md, and ONNX's own runtime."""

import ast
import io
import json
import re
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from infra.base.errors import ConfigError
from infra.base.storage import Storage
from ingest.convert import Converter, Event
from ingest.schema import KeyTable, Schema
from ps.config import RowConfig
from ps.errors import CheckpointDamaged
from ps.start import start_rows
from serving.copies import ModelCopy, ModelSpec
from serving.loading import load
from serving.snapshots.folder import write_export
from serving.snapshots.model import ReadModel, RunModel, build, read_model
from tests.ingest.topics import SMALL
from tests.serving.snapshots.checkpoints import make_checkpoint, run_model, sample_events
from trainer.config import ModelName
from trainer.models.layers import ATTENTION_UNIT, pool, scale_unit

EXAMPLE = re.findall(r"^```python\n(.*?)^```", Path("docs/export.md").read_text(), re.DOTALL | re.MULTILINE)[0]
CROSSED = msgspec.structs.replace(SMALL, crosses=(("user", "age_bucket"),))
POOLED = msgspec.structs.replace(
    SMALL,
    tables=tuple(
        msgspec.structs.replace(table, pool="mean") if table.name == "tags" else table for table in SMALL.tables
    ),
)
ATTENTIVE = msgspec.structs.replace(
    POOLED,
    tables=(
        *POOLED.tables,
        KeyTable("moods", source="tags", values=2, pool="attention", truncate=True),
        KeyTable("friends", source="tags", values=3, pool="attention", query="user", rows_of="user"),
    ),
)
OURS = ("ingest", "dispatch", "trainer", "ps", "api", "serving", "infra", "benchmarks")


def events_of(schema: Schema) -> list[Event]:
    """Of a pooled table every other event gives its values weights."""
    events = sample_events()
    if not schema.pools:
        return events
    tags = [event.fields.get("tags") for event in events]
    weighed = [{str(tag): 0.5 + at for at, tag in enumerate(each)} if isinstance(each, list) else each for each in tags]
    return [
        msgspec.structs.replace(event, fields={**event.fields, "tags": given}) if number % 2 else event
        for number, (event, given) in enumerate(zip(events, weighed, strict=True))
    ]


def exported(
    tmp_path: Path, of: RunModel, with_onnx: bool = False, is_full: bool = False, kept: tuple[int, ...] = ()
) -> tuple[ReadModel, Path]:
    storage = Storage.at(tmp_path / "checkpoints")
    make_checkpoint(storage, of, is_full=is_full, kept=kept)
    read = read_model(storage, 1, of)
    write_export(tmp_path / "exported", read, of, with_onnx)
    return read, tmp_path / "exported"


def inputs_of(read: ReadModel, of: RunModel) -> dict[str, torch.Tensor]:
    """Embeddings, wide weights and dense inputs of the sample events, looked up one by one; with the shares of pooled
    values if the model needs them.
    """
    samples, _ = Converter(of.schema).convert_events(events_of(of.schema))
    rows = dict(zip(read.keys_R.view(np.uint64).tolist(), read.values_RW, strict=True))
    unknown = start_rows(of.rows, of.seed, samples.keys_BF.reshape(-1))[:, : of.rows.shape().value]
    flat = [rows.get(key, start) for key, start in zip(samples.keys_BF.reshape(-1).tolist(), unknown, strict=True)]
    values = torch.from_numpy(np.array(flat)).reshape(*samples.keys_BF.shape, -1)
    singles = values[:, : of.schema.singles]
    crosses = values[:, of.schema.singles :]
    shares = None if samples.shares_BP is None else torch.from_numpy(samples.shares_BP)
    if shares is not None and not of.schema.has_attention:
        singles = pool(singles, shares, of.schema.pools)
    wide = torch.cat([singles, crosses], 1)[..., of.rows.dim]
    inputs = {"embeddings": singles[..., : of.rows.dim], "wide": wide, "dense": torch.from_numpy(samples.dense_BN)}
    return inputs | {"shares": shares} if shares is not None and of.schema.has_attention else inputs


def logits_of(read: ReadModel, of: RunModel) -> torch.Tensor:
    module = build(of)
    weights = {name: torch.from_numpy(weight) for name, weight in read.weights.items()}
    for head in [name for name in weights if name.endswith(".scales")]:
        scales = weights.pop(head)
        if of.model.scale_rate:
            weights[head.replace("scales", "raw_scales")] = (scales - 1) / scale_unit(of.model)
    for name in [name for name in weights if name.startswith("attention.")]:
        weights[name] = weights[name] / ATTENTION_UNIT
    module.load_state_dict(weights)
    with torch.no_grad():
        given = inputs_of(read, of)
        return module.score(given["embeddings"], given["wide"], given["dense"], given.get("shares"))


def served_by(storage: Storage, read: ReadModel, of: RunModel) -> list[float]:
    """What the serving process answers for the sample events."""
    crosses = len(of.schema.crosses)
    spec = ModelSpec(of.run, of.seed, of.rows, of.model, of.schema.fields, of.schema.dense, crosses=crosses)
    spec = replace(spec, pools=of.schema.pools)
    copy = ModelCopy(spec)
    load(storage, read.manifest, copy)
    samples, _ = Converter(of.schema).convert_events(events_of(of.schema))
    return list(map(float, copy.predict(samples)))


def shown_by_example(folder: Path, monkeypatch: pytest.MonkeyPatch, schema: Schema = SMALL) -> list[float]:
    """What the program of the document prints for the sample events."""
    lines = [json.dumps({"fields": event.fields}) for event in events_of(schema)]
    monkeypatch.setattr(sys, "argv", ["example.py", str(folder)])
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    with redirect_stdout(io.StringIO()) as shown:
        exec(compile(EXAMPLE, "docs/export.md", "exec"), {})
    return [float(line) for line in shown.getvalue().split()]


@pytest.mark.parametrize(("is_full", "kept"), [(True, ()), (False, ()), (False, (1, 2))])
def test_an_exported_model_that_is_pruned_predicts_what_is_served(
    tmp_path: Path, is_full: bool, kept: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = replace(run_model("dcn"), rows=RowConfig(dim=4, chunks=2))
    read, folder = exported(tmp_path, of, is_full=is_full, kept=kept)
    assert (read.values_RW[:, :4] == 0).any()
    found = shown_by_example(folder, monkeypatch)
    assert found == pytest.approx(served_by(Storage.at(tmp_path / "checkpoints"), read, of), abs=1e-6)
    has_start_values = torch.sigmoid(logits_of(read, of)).tolist() == pytest.approx(found, abs=1e-6)
    assert has_start_values is not (is_full or bool(kept)), "keys that training has not seen"


@pytest.mark.parametrize(
    ("schema", "rate"),
    [(SMALL, 0), (SMALL, 0.06), (CROSSED, 0.06), (POOLED, 0.06), (ATTENTIVE, 0.06)],
    ids=["old", "new", "crosses", "pooled", "attention"],
)
@pytest.mark.parametrize("name", get_args(ModelName))
def test_the_program_of_the_document_predicts_what_the_model_predicts(
    tmp_path: Path, name: ModelName, schema: Schema, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = replace(run_model(name, scale_rate=rate), schema=schema)
    read, folder = exported(tmp_path, of)
    found = shown_by_example(folder, monkeypatch, schema)
    expected = served_by(Storage.at(tmp_path / "checkpoints"), read, of)
    assert found == pytest.approx(expected, abs=1e-6)
    assert torch.sigmoid(logits_of(read, of)).tolist() == pytest.approx(expected, abs=1e-6)
    assert max(expected) - min(expected) > 1e-3


def test_the_program_of_the_document_imports_nothing_of_freshet_and_is_short() -> None:
    found = [node for node in ast.walk(ast.parse(EXAMPLE)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in found for alias in node.names} | {
        str(getattr(node, "module", "")) for node in found
    }
    assert not {name.split(".")[0] for name in names} & set(OURS)
    assert sum(bool(line.strip()) for line in EXAMPLE.splitlines()) <= 70


CROSSES = [("dcn", {"cross": "low_rank", "cross_rank": 3}), ("dcn", {"cross": "vector"}), ("wdl", {"scale_rate": 0})]


@pytest.mark.parametrize("lists", [POOLED, ATTENTIVE], ids=["pooled", "attention"])
@pytest.mark.parametrize(("name", "given"), [*((name, {}) for name in get_args(ModelName)), *CROSSES])
def test_onnx_computes_what_torch_computes(
    tmp_path: Path, name: ModelName, given: dict[str, object], lists: Schema
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    labels = ("click", "purchase")
    schema = msgspec.structs.replace(lists, crosses=CROSSED.crosses, labels=labels)
    of = replace(run_model(name, **given), schema=schema)
    read, folder = exported(tmp_path, of, with_onnx=True)
    session = onnxruntime.InferenceSession(folder / "dense.onnx", providers=["CPUExecutionProvider"])
    fed = {name: values.numpy() for name, values in inputs_of(read, of).items()}
    logits = np.stack(session.run(["logits", "logits_purchase"], fed), 1)
    np.testing.assert_allclose(logits, logits_of(read, of).numpy(), atol=1e-5)


def test_the_folder_says_what_it_holds(tmp_path: Path) -> None:
    read, folder = exported(tmp_path, run_model("wdl"))
    about = json.loads((folder / "model.json").read_text())
    assert about["version"] == {"timeline": 0, "step": 5, "checkpoint": 1}
    assert (about["model"]["name"], about["schema"]["name"], about["rows"]["count"]) == ("wdl", "small", 17)
    assert set(about["files"]) == {"rows.safetensors", "dense.safetensors"}
    keys = load_file(folder / "rows.safetensors")["keys"]
    assert (np.diff(keys) > 0).all()
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}
    assert len(keys) == len(read.keys_R)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "exported"]


def test_a_folder_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "exported").mkdir()
    with pytest.raises(ConfigError, match=r"exported exists; expected a new folder"):
        exported(tmp_path, run_model("wdl"))
    assert list((tmp_path / "exported").iterdir()) == []


def test_a_damaged_checkpoint_is_not_exported(tmp_path: Path) -> None:
    storage, of = Storage.at(tmp_path / "checkpoints"), run_model("wdl")
    name = make_checkpoint(storage, of).shards[1].files[0].name
    content = bytearray((tmp_path / "checkpoints" / name).read_bytes())
    content[-1] ^= 1
    (tmp_path / "checkpoints" / name).write_bytes(bytes(content))
    with pytest.raises(CheckpointDamaged, match=re.escape(name)):
        read_model(storage, 1, of)
