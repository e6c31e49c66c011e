"""The folder of an exported model.

    FOLDER/model.json            settings of the model, schema, snapshot id, figures, checksums of the other files
           rows.safetensors      keys (signed, ascending) and values of all rows
           dense.safetensors     dense weights by name
           dense.onnx            the dense part as ONNX, if requested

It is written under a temporary name beside its place, and renamed when all of it is durable; an existing folder is
refused.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import xxhash
from numpy.typing import NDArray
from safetensors.numpy import save_file

from infra.base.errors import ConfigError
from infra.base.files import naming
from ingest.keys import absent_key, rare_key, table_seed
from ingest.schema import Schema
from ps.checkpoints.manifest import kept_columns
from ps.start import SUM_STD
from serving.snapshots.model import ReadModel, RunModel

FORMAT = "freshet-export-1"
MODEL = "model.json"
ROWS = "rows.safetensors"
DENSE = "dense.safetensors"
ONNX = "dense.onnx"
PART = ".part"
READABLE = 0o644
LEARNING = {"dense_optimizer", "dense_rate", "scale_rate", "base_rate", "label_smoothing"}
"""Settings of the model that only training uses."""


def write_export(folder: Path, model: ReadModel, of: RunModel, with_onnx: bool) -> tuple[str, ...]:
    """Writes the folder; returns the names of its files. Raises ConfigError if it exists, FileUnusable on failure."""
    folder = folder.absolute()
    check_free(folder)
    part = folder.with_name(f".{folder.name}.{os.getpid()}{PART}")
    try:
        with naming(folder):
            part.mkdir(parents=True)
            _save(part / ROWS, {"keys": model.keys_R, "values": model.values_RW})
            _save(part / DENSE, model.weights)
            if with_onnx:
                from serving.snapshots.onnx_graph import dense_graph  # needs an optional dependency

                (part / ONNX).write_bytes(dense_graph(of, model.weights))
            names = sorted(file.name for file in part.iterdir())
            text = msgspec.json.encode(describe_model(model, of) | {"files": {n: _checksum(part / n) for n in names}})
            (part / MODEL).write_bytes(msgspec.json.format(text) + b"\n")
            _make_durable(part)
            check_free(folder)
            part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return (MODEL, *names)


def check_free(folder: Path) -> None:
    if folder.exists() or folder.is_symlink():
        raise ConfigError(
            f"{folder} exists; expected a new folder, since an export replaces nothing; name another, or move it away"
        )


def describe_model(model: ReadModel, of: RunModel) -> dict[str, Any]:
    """What a reader needs besides the arrays.

    Seeds and keys of 64 bits are hexadecimal, because not every JSON reader can hold them as numbers.
    """
    manifest = model.manifest
    return {
        "format": FORMAT,
        "run": manifest.run,
        "version": {  # the snapshot id, as exports of earlier releases call it
            "timeline": manifest.timeline,
            "step": manifest.step,
            "checkpoint": manifest.number,
        },
        "taken_at_seconds": manifest.at_seconds,
        "held_back": list(manifest.verdict.reasons),
        "figures": msgspec.to_builtins(manifest.figures),
        "seed": hex(of.seed),
        "rows": {
            "count": len(model.keys_R),
            "dim": of.rows.dim,
            "wide": of.rows.wide,
            "start_scale": 0.0 if manifest.are_new_keys_bare is True else of.rows.init_std / SUM_STD,
            "columns": list(kept_columns(manifest, of.rows) or range(of.rows.dim)),
            "float_dtype": of.rows.float_dtype,
        },
        "model": of.model.model_dump(mode="json", exclude=LEARNING),
        "schema": _described(of.schema),
    }


def _described(schema: Schema) -> dict[str, Any]:
    attending = [table.name for table in schema.tables if table.pool == "attention"]
    weights = {name: {"attention": f"attention.{number}"} for number, name in enumerate(attending)}
    tables = [
        msgspec.to_builtins(table)
        | {"source": table.field, "seed": hex(table_seed(table.key_table))}
        | {"absent_key": hex(absent_key(table.key_table)), "rare_key": hex(rare_key(table.key_table))}
        | weights.get(table.name, {})
        for table in schema.tables
    ]
    dense = [msgspec.to_builtins(field) | {"source": field.field} for field in schema.dense_fields]
    crosses = [
        {"tables": list(cross), "seed": hex(table_seed(name)), "rare_key": hex(rare_key(name))}
        for name, cross in zip(schema.cross_names, schema.crosses, strict=True)
    ]
    named = {"name": schema.name, "fingerprint": schema.fingerprint, "labels": list(schema.labels)}
    return {**named, "tables": tables, "crosses": crosses, "dense_fields": dense}


def _save(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    save_file(dict(arrays), path)


def _checksum(path: Path) -> dict[str, Any]:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    return {"bytes": path.stat().st_size, "xxh3_128": digest.hexdigest()}


def _make_durable(folder: Path) -> None:
    for path in folder.iterdir():
        path.chmod(READABLE)  # safetensors creates files that only the owner can read
    for path in (*folder.iterdir(), folder):
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
