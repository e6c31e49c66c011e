"""The dense part of a model as ONNX: embeddings, wide weights and dense inputs in, one logit a sample out.

It is written node by node; each function mirrors the forward pass of its model, so that neither torch's exporter nor
its compiler is needed. A model of another package is written by torch's exporter, and its nodes are taken over. Needs
the extra ``onnx``. Inputs that a model does not use (wide weights, dense inputs) are left out. Rows of a pooled table
come in summed: one embedding and one wide weight. If the model learns how much the values of a list count (attention),
the rows of all values come in, with their shares, and the graph sums them.

Legend: B samples, F wide weights a sample, E of them without those of crosses, D embedding columns, N dense inputs,
P keys of pooled tables, v keys of one of them, V vectors, H width of a hidden vector.
"""

import io
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from infra.base.errors import ConfigError, MissingProgram
from infra.base.plugins import describe_failure
from ingest.schema import ListPool
from serving.snapshots.model import HEAD, MORE_HEADS, RunModel, build
from trainer.models.plugged import PluggedModel

try:
    from onnx import TensorProto, checker, compose, helper, load_model_from_string, numpy_helper
except ImportError as error:
    raise MissingProgram(
        "the dense part cannot be written as ONNX: the package 'onnx' is missing; expected Freshet with its extra; "
        "pip install 'freshet[onnx]'"
    ) from error

OPSET = 18
IR_VERSION = 9
"""Version of the file format; old enough for runtimes of recent years."""


class OnnxGraph:
    """The nodes and weights added so far."""

    def __init__(self, of: RunModel, weights: Mapping[str, NDArray[Any]]) -> None:
        self.of = of
        self.dtype = np.dtype(of.rows.float_dtype)
        self.weights = weights
        self.nodes: list[Any] = []
        self.constants = {name: numpy_helper.from_array(value, name) for name, value in weights.items()}
        self.embeddings = "embeddings"
        """The vectors that the model uses, one for each pooled table."""
        self.wide = "wide"
        """The wide weights that the model uses."""

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node; returns the name of its output."""
        output = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(np.array(values, dtype), name)
        return name

    def concat(self, *inputs: str, axis: int = 1) -> str:
        return inputs[0] if len(inputs) == 1 else self.op("Concat", *inputs, axis=axis)

    def total(self, value: str) -> str:
        """Sums over the second axis."""
        return self.op("ReduceSum", value, self.constant([1]), keepdims=0)

    def linear(self, value: str, name: str) -> str:
        return self.op("Gemm", value, f"{name}.weight", f"{name}.bias", transB=1)

    def mlp(self, value: str, name: str) -> str:
        layer = 0
        while f"{name}.{layer}.weight" in self.weights:
            value = self.op("Relu", self.linear(value, f"{name}.{layer}"))
            layer += 2
        return value

    def columns(self, value: str, start: int, end: int, axis: int = 2) -> str:
        """A range of columns of the embeddings."""
        return self.op("Slice", value, self.constant([start]), self.constant([end]), self.constant([axis]))

    def flat(self, embeddings: str) -> str:
        """All inputs of a sample, concatenated."""
        dense = ("dense",) if self.of.schema.dense else ()
        return self.concat(self.op("Flatten", embeddings, axis=1), *dense)


def dense_graph(of: RunModel, weights: Mapping[str, NDArray[Any]]) -> bytes:
    """A checked ONNX model: (embeddings B×E×D, wide B×F, dense B×N) → logits B, and as many for each further label."""
    graph = OnnxGraph(of, weights)
    if of.schema.has_attention:
        _pool(graph)
    hidden = (_plugged if of.model.is_plugged else HIDDEN[of.model.name])(graph)
    heads = {"logits": HEAD}
    heads |= {f"logits_{name}": f"{MORE_HEADS}.{place}" for place, name in enumerate(of.schema.more_labels)}
    for output, head in heads.items():
        logits = graph.op("Add", graph.op("MatMul", hidden, f"{head}.weight"), f"{head}.bias")
        if of.rows.wide:
            logits = graph.op("Add", logits, graph.op("MatMul", graph.wide, f"{head}.scales"))
        graph.nodes.append(helper.make_node("Identity", [logits], [output]))
    kind = TensorProto.DOUBLE if graph.dtype == np.float64 else TensorProto.FLOAT
    keys = of.schema.singles if of.schema.has_attention else of.schema.vectors
    shapes: dict[str, list[Any]] = {"embeddings": ["B", keys, of.rows.dim]}
    shapes |= {"wide": ["B", keys + len(of.schema.crosses)]} if of.rows.wide else {}
    shapes |= {"shares": ["B", of.schema.shares]} if of.schema.has_attention else {}
    shapes |= {"dense": ["B", of.schema.dense]} if of.schema.dense else {}
    inputs = [helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info(name, kind, ["B"]) for name in heads]
    made = helper.make_graph(
        graph.nodes, of.model.name.replace(":", "."), inputs, outputs, list(graph.constants.values())
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString()
    return content


# ── lists ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _pool(graph: OnnxGraph) -> None:
    """Replaces the rows of each pooled table by their sum, as ``trainer.models.layers.pool`` does."""
    embeddings: list[str] = []
    wide: list[str] = []
    at = taken = attending = 0
    for pool in graph.of.schema.pools:
        shares_Bv = graph.columns("shares", taken, taken + pool.values, axis=1)
        if pool.attends:
            shares_Bv = _attend(graph, pool, f"attention.{attending}", shares_Bv)
            attending += 1
        end = pool.first + pool.values
        shares_B1v = graph.op("Unsqueeze", shares_Bv, graph.constant([1]))
        summed_B1D = graph.op("MatMul", shares_B1v, graph.columns("embeddings", pool.first, end, axis=1))
        embeddings += [graph.columns("embeddings", at, pool.first, axis=1), summed_B1D]
        if graph.of.rows.wide:
            counted_Bv = graph.op("Mul", graph.columns("wide", pool.first, end, axis=1), shares_Bv)
            summed_B1 = graph.op("ReduceSum", counted_Bv, graph.constant([1]), keepdims=1)
            wide += [graph.columns("wide", at, pool.first, axis=1), summed_B1]
        at = end
        taken += pool.values
    schema = graph.of.schema
    graph.embeddings = graph.concat(*embeddings, graph.columns("embeddings", at, schema.singles, axis=1))
    if graph.of.rows.wide:
        graph.wide = graph.concat(*wide, graph.columns("wide", at, schema.fields, axis=1))


def _attend(graph: OnnxGraph, pool: ListPool, name: str, shares_Bv: str) -> str:
    """What the values of a list count, as ``trainer.models.layers.Attention`` has it."""
    query = f"{name}.bias"
    if pool.query >= 0:
        key_BD = graph.op("Gather", "embeddings", graph.constant(pool.query), axis=1)
        asked_BD = graph.op("Gemm", key_BD, f"{name}.weight", f"{name}.bias", transB=1)
        query = graph.op("Unsqueeze", asked_BD, graph.constant([1]))
    values_BvD = graph.columns("embeddings", pool.first, pool.first + pool.values, axis=1)
    products_BvD = graph.op("Mul", values_BvD, query)
    scores_Bv = graph.op("ReduceSum", products_BvD, graph.constant([2]), keepdims=0)
    zero = graph.constant(0, graph.dtype)
    counts_Bv = graph.op("Greater", shares_Bv, zero)
    lowest = graph.constant(np.finfo(graph.dtype).min, graph.dtype)
    counted_Bv = graph.op("Where", counts_Bv, scores_Bv, lowest)
    highest_B1 = graph.op("ReduceMax", counted_Bv, graph.constant([1]), keepdims=1)
    powers_Bv = graph.op("Exp", graph.op("Sub", counted_Bv, highest_B1))
    parts_Bv = graph.op("Mul", shares_Bv, powers_Bv)
    total_B1 = graph.op("ReduceSum", parts_Bv, graph.constant([1]), keepdims=1)
    is_empty_B1 = graph.op("Equal", total_B1, zero)
    divisor_B1 = graph.op("Where", is_empty_B1, graph.constant(1, graph.dtype), total_B1)
    return graph.op("Div", parts_Bv, divisor_B1)


# ── the models ────────────────────────────────────────────────────────────────────────────────────────────────────────
def _wdl(graph: OnnxGraph) -> str:
    return graph.mlp(graph.flat(graph.embeddings), "deep")


def _deepfm(graph: OnnxGraph) -> str:
    total = graph.total(graph.embeddings)
    squares = graph.total(graph.op("Mul", graph.embeddings, graph.embeddings))
    both = graph.op("Sub", graph.op("Mul", total, total), squares)
    products = graph.op("Mul", both, graph.constant(0.5, graph.dtype))
    return graph.concat(products, graph.mlp(graph.flat(graph.embeddings), "deep"))


def _dcn(graph: OnnxGraph) -> str:
    start = crossed = graph.flat(graph.embeddings)
    for layer in range(graph.of.model.cross_layers):
        crossed = CROSSES[graph.of.model.cross](graph, start, crossed, f"cross.{layer}")
    return graph.concat(crossed, graph.mlp(start, "deep"))


def _matrix(graph: OnnxGraph, start: str, crossed: str, name: str) -> str:
    through = graph.linear(crossed, f"{name}.through")
    return graph.op("Add", graph.op("Mul", start, through), crossed)


def _low_rank(graph: OnnxGraph, start: str, crossed: str, name: str) -> str:
    down = graph.op("Gemm", crossed, f"{name}.down", transB=1)
    return graph.op("Add", graph.op("Mul", start, graph.linear(down, f"{name}.up")), crossed)


def _vector(graph: OnnxGraph, start: str, crossed: str, name: str) -> str:
    through = graph.op("Unsqueeze", graph.op("MatMul", crossed, f"{name}.weight"), graph.constant([1]))
    return graph.op("Add", graph.op("Mul", start, through), graph.op("Add", crossed, f"{name}.bias"))


def _dlrm(graph: OnnxGraph) -> str:
    vectors = graph.embeddings
    count = graph.of.schema.vectors
    if graph.of.schema.dense:
        bottom = graph.op("Unsqueeze", graph.mlp("dense", "bottom"), graph.constant([1]))
        vectors, count = graph.concat(graph.embeddings, bottom), count + 1
    products = graph.op("MatMul", vectors, graph.op("Transpose", vectors, perm=[0, 2, 1]))
    first, second = np.triu_indices(count, 1)
    pairs = graph.constant(first * count + second)
    chosen = graph.op("Gather", graph.op("Flatten", products, axis=1), pairs, axis=1)
    return graph.mlp(graph.concat(graph.op("Flatten", vectors, axis=1), chosen), "top")


def _ncf(graph: OnnxGraph) -> str:
    dim = graph.of.rows.dim
    factors = graph.columns(graph.embeddings, 0, dim // 2)
    user, item = (graph.op("Gather", factors, graph.constant(place), axis=1) for place in (0, 1))
    deep = graph.mlp(graph.flat(graph.columns(graph.embeddings, dim // 2, dim)), "deep")
    return graph.concat(graph.op("Mul", user, item), deep)


BODY = "body"


def _plugged(graph: OnnxGraph) -> str:
    """The nodes that torch's exporter writes for the module of another package, under names that begin with BODY."""
    embeddings = graph.op("Identity", graph.embeddings)
    zero = graph.constant([0])
    flat = graph.op("Flatten", embeddings, axis=1)
    no_dense = graph.op("Slice", flat, zero, zero, graph.constant([1]))  # samples × 0
    inputs = {"embeddings": embeddings, "dense": "dense" if graph.of.schema.dense else no_dense}
    written = compose.add_prefix(_exported_body(graph), f"{BODY}/").graph
    for name in [name for name in graph.constants if name.startswith(f"{BODY}.")]:
        del graph.constants[name]
    graph.constants |= {each.name: each for each in written.initializer}
    used = {f"{BODY}/{name}": given for name, given in inputs.items()}
    for node in written.node:
        node.input[:] = [used.get(name, name) for name in node.input]
        graph.nodes.append(node)
    return f"{BODY}/hidden"


def _exported_body(graph: OnnxGraph) -> Any:
    model = build(graph.of)
    assert isinstance(model, PluggedModel), "only models of other packages are exported"
    for name, weight in model.body.named_parameters():
        weight.data.copy_(torch.from_numpy(graph.weights[f"{BODY}.{name}"]))
    schema = graph.of.schema
    dtype = next((weight.dtype for weight in model.parameters()), torch.float32)
    inputs = torch.zeros(2, schema.vectors, graph.of.rows.dim, dtype=dtype), torch.zeros(2, schema.dense, dtype=dtype)
    names = ["embeddings", "dense"]
    written = io.BytesIO()
    try:
        with warnings.catch_warnings(action="ignore"):  # the exporter without a compiler is deprecated
            torch.onnx.export(
                model.body.eval(),
                inputs,
                written,  # type: ignore[arg-type]  # this exporter writes to open files, too
                dynamo=False,
                opset_version=OPSET,
                input_names=names,
                output_names=["hidden"],
                dynamic_axes={name: {0: "B"} for name in (*names, "hidden")},
            )
    except Exception as error:  # whatever the exporter cannot express
        raise ConfigError(
            f"model {graph.of.model.name!r} cannot be written as ONNX: {describe_failure(error)}; expected operations "
            "that torch.onnx.export knows; export without --onnx"
        ) from error
    return load_model_from_string(written.getvalue())


HIDDEN: Mapping[str, Callable[[OnnxGraph], str]] = {
    "wdl": _wdl,
    "deepfm": _deepfm,
    "dcn": _dcn,
    "dlrm": _dlrm,
    "ncf": _ncf,
}
CROSSES: Mapping[str, Callable[[OnnxGraph, str, str, str], str]] = {
    "matrix": _matrix,
    "low_rank": _low_rank,
    "vector": _vector,
}
