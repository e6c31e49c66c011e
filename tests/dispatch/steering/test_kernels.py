import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from threading import Event

import pytest

from dispatch.steering.kernels import PolicyKernels

COMPILED = """
import sys
import numpy as np
from dispatch.placement.decide import Decider, warm_up
from dispatch.placement.policies.registry import parse_spec
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import Index
from dispatch.placement.rows.pruning import Pruner, PruneTerms
from dispatch.progress.drift import Drift, DriftTerms
from dispatch.progress.over_time import OverTime
from dispatch.progress.prequential import Prequential
from dispatch.progress.warm_up import warm_up_quality
from infra.base.distinct import number_keys
from ingest.samples import Samples
from ingest.schema import load_schema

def compiled():
    modules = [module for name, module in sys.modules.items() if name.startswith("dispatch.")]
    return {(value.__module__, value.__name__, signature) for module in modules for value in vars(module).values()
            for signature in getattr(value, "signatures", ())}

warm_up_quality()
known, schema, labels = compiled(), load_schema("avazu"), np.ones(9, np.float32)
keys = np.zeros((9, schema.fields), np.uint64)
samples = Samples(labels, np.empty((9, 0), np.float32), keys, np.zeros(9), np.frombuffer(labels.tobytes(), np.float32))
Prequential().add(labels, labels, samples.weights_B)
OverTime({"site_id": 0}, 1, 9).add(1, samples, labels)
Drift(DriftTerms(0.5, 0.5, 9), schema).add(1, samples)
print(sorted(compiled() - known))

chunks = int(sys.argv[1])
for policy in sys.argv[2:]:
    warm_up(policy, seed=1, chunks=chunks)
    known, needs, draw = compiled(), parse_spec(policy).needs, np.random.default_rng(0)
    directory = Directory(np.full(3, 4096, np.int64), "lru", 3, needs.synchronisation, write_behind=1.0)
    sizes = np.linspace(0.5, 1.0, 1 << chunks) if chunks else None
    pruner = Pruner(PruneTerms(chunks, budget=6000))
    members = Index(), directory, parse_spec(policy).build(1, "cpu"), needs, np.array([1.0, 1.0, 2.0])
    decider = Decider(*members, pruner=pruner, sizes=sizes)
    decider.compares = True
    for step, alpha in ((1, 1.0), (2, 0.75), (3, 0.25), (16, 0.5), (17, 0.0)):
        decider.alpha = alpha
        decider.decide(step, number_keys(draw.integers(0, 3000, (256, 6)).astype(np.uint64)))
    decider.flush()
    if chunks:
        decider.reshape(np.arange(9), np.full(9, 1, np.uint8))
        decider.drop_copies()
    print(sorted(compiled() - known))
"""


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Policies whose kernels were compiled; the one named "broken" has none."""
    seen: list[str] = []

    def compile_kernels(policy: str, *_: object) -> None:
        seen.append(policy)
        if policy == "broken":
            raise ValueError(policy)

    monkeypatch.setattr("dispatch.steering.kernels.warm_up", compile_kernels)
    return seen


@pytest.fixture
def kernels() -> Iterator[PolicyKernels]:
    with closing(PolicyKernels(7, "cpu", lambda: False)) as kernels:
        yield kernels


def test_the_kernels_of_a_policy_are_compiled_once(kernels: PolicyKernels, compiled: list[str]) -> None:
    assert kernels.await_compiled("het")
    assert kernels.are_compiled("het")
    assert compiled == ["het"]


def test_nobody_waits_while_kernels_are_compiled(kernels: PolicyKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = Event()
    monkeypatch.setattr("dispatch.steering.kernels.warm_up", lambda *_: may_end.wait())
    assert not kernels.are_compiled("het")
    may_end.set()
    kernels.await_compiled("het")
    assert kernels.are_compiled("het")


def test_kernels_that_cannot_be_compiled_are_an_error(kernels: PolicyKernels, compiled: list[str]) -> None:
    for attempt in (kernels.await_compiled, kernels.are_compiled):
        with pytest.raises(ValueError, match="broken"):
            attempt("broken")
    assert compiled == ["broken"]


@pytest.mark.parametrize("chunks", [0, 2])
def test_no_step_compiles_anything_whatever_alpha_is(chunks: int) -> None:
    """In a process of its own: others have compiled what they needed."""
    argv = [sys.executable, "-c", COMPILED, str(chunks), "esd:1", "joint:8"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "[]\n[]\n[]\n"
