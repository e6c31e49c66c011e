"""Workers on real shards against the plain single-process loop."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from infra.base.link import Link
from ps.config import OptimizerName, RowConfig
from tests.ps.doubles import SEED
from tests.trainer.director import DENSE, FIELDS, Director, batches, directed, equal_weights, weights
from trainer.config import ModelConfig, TrainerConfig
from trainer.errors import DeviceMissing
from trainer.reduce import DenseGroup, PeerGroup, Rendezvous, form_group
from trainer.reference import Reference
from trainer.worker import Stopwatch, choose_device, threads_among

MODEL = ModelConfig(mlp=(8,), cross_layers=1)
STEPS = 8


def configured(optimizer: OptimizerName = "adagrad", wide: bool = True) -> RowConfig:
    return RowConfig(dim=4, wide=wide, optimizer=optimizer, float_dtype="float64", initial_accumulator=1e-3, rate=0.1)


def trained(director: Director, steps: int = STEPS) -> list[NDArray[np.float32]]:
    """Trains some steps, samples going to workers by turns; returns the logits of each batch in its own order."""
    logits = []
    for step, batch in enumerate(batches(steps)):
        assigned = np.arange(len(batch[2])) % len(director.workers)
        reports = director.train(step, batch, assigned)
        whole = np.empty(len(batch[2]), np.float32)
        for worker, (_, part) in enumerate(reports):
            whole[assigned == worker] = part.logits
        logits.append(whole)
    return logits


def compared(director: Director, peeked: NDArray[Any], rows: RowConfig) -> None:
    reference = Reference(rows, MODEL, FIELDS, DENSE, SEED)
    for batch in batches(STEPS):
        reference.step(*batch)
    np.testing.assert_allclose(peeked, reference.rows(), rtol=1e-9, atol=1e-12)
    for name, weight in reference.dense_weights().items():
        np.testing.assert_allclose(weights(director.workers[0])[name], weight, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_equal_the_plain_loop(workers: int, optimizer: OptimizerName) -> None:
    rows = configured(optimizer)
    with directed(rows, MODEL, workers) as director:
        trained(director)
        compared(director, director.flushed_rows(), rows)


def test_rows_without_wide_column_equal_the_plain_loop() -> None:
    rows = configured(wide=False)
    with directed(rows, MODEL, workers=2) as director:
        trained(director)
        compared(director, director.flushed_rows(), rows)


def test_logits_are_those_before_the_step() -> None:
    reference = Reference(configured(), MODEL, FIELDS, DENSE, SEED)
    with directed(configured(), MODEL, workers=2) as director:
        for logits, batch in zip(trained(director), batches(STEPS), strict=True):
            np.testing.assert_allclose(logits, reference.step(*batch), rtol=1e-6)


def test_same_run_twice_is_equal_bit_for_bit() -> None:
    results = []
    for _ in range(2):
        with directed(configured(), MODEL, workers=4) as director:
            trained(director)
            rows = director.flushed_rows()
            results.append([rows, *(tensor.numpy().copy() for tensor in director.workers[3].dense.tensors())])
    assert all(np.array_equal(first, second) for first, second in zip(*results, strict=True))


def test_workers_keep_equal_dense_weights() -> None:
    with directed(configured(), MODEL, workers=4) as director:
        trained(director)
        assert all(equal_weights(director.workers[0], other) for other in director.workers[1:])


def test_worker_without_samples_still_reduces() -> None:
    with directed(configured(), MODEL, workers=2) as director:
        for step, batch in enumerate(batches(STEPS)):
            reports = director.train(step, batch, np.zeros(len(batch[2]), np.int64))
            assert len(reports[1][1].logits) == 0
        assert equal_weights(*director.workers)
        compared(director, director.flushed_rows(), configured())


def test_flush_pushes_and_trains_nothing() -> None:
    with directed(configured(), MODEL, workers=2) as director:
        trained(director, steps=1)
        before = weights(director.workers[0])["output.bias"].copy()
        told = director.flush()
        assert all(report.seconds.total == report.seconds.push > 0 for report, _ in told)
        assert all(report.pushed_bytes > 0 and report.pulled_bytes == 0 for report, _ in told)
        assert all(len(arrays.logits) == 0 for _, arrays in told)
        assert weights(director.workers[0])["output.bias"] == before


def test_empty_batch_changes_no_weight() -> None:
    with directed(configured(), MODEL, workers=2) as director:
        before = [tensor.clone() for tensor in director.workers[0].dense.tensors()]
        director.train(0, batches(1, size=0)[0], np.empty(0, np.int64))
        assert all(torch.equal(a, b) for a, b in zip(before, director.workers[0].dense.tensors(), strict=True))


def test_report_counts_bytes_and_seconds_of_every_phase() -> None:
    with directed(configured(), MODEL, workers=1, shards=1) as director:
        (report, _), *_ = director.train(0, batches(1)[0], np.zeros(24, np.int64))
        assert report.pulled_bytes == len(director.numbering) * configured().shape().total * 8
        assert report.pushed_bytes == 0
        assert all(seconds > 0 for seconds in report.seconds.by_phase().values())


def test_newcomer_gets_the_dense_weights_of_rank_0() -> None:
    with directed(configured(), MODEL, workers=2) as director:
        for tensor in director.workers[0].dense.tensors():
            tensor.add_(1)
        assert not equal_weights(*director.workers)
        director.begin()
        assert equal_weights(*director.workers)


def test_newcomer_gets_the_optimizer_state_of_rank_0() -> None:
    with directed(configured(), MODEL, workers=2) as director:
        first, second = (dict(worker.dense.named()) for worker in director.workers)
        for tensor in first.values():
            tensor.add_(1)
        director.begin()
        assert {name for name in first if not torch.equal(first[name], second[name])} == set()
        assert {"step", "exp_avg/output.bias"} <= set(first)


def test_every_generation_meets_under_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def spy(rendezvous: Rendezvous, name: str, *rest: Any) -> DenseGroup:
        names.append(name)
        return form_group(rendezvous, name, *rest)

    monkeypatch.setattr("trainer.worker.form_group", spy)
    with directed(configured(), MODEL, workers=1) as director:
        director.begin()
    assert len(set(names)) == len(names) == 2


def test_worker_leaves_its_old_group_when_a_generation_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    with directed(configured(), MODEL, workers=2) as director:
        left: list[DenseGroup] = []
        monkeypatch.setattr(PeerGroup, "close", lambda group: left.append(group))
        old = director.workers[0]._group
        director.begin()
        assert old in left
        monkeypatch.undo()
        old.close()


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_replicas_change_alike_on_workers_with_and_without_samples(optimizer: OptimizerName) -> None:
    rows, (batch,) = configured(optimizer), batches(1)
    reference = Reference(rows, MODEL, FIELDS, DENSE, SEED)
    reference.step(*batch)
    with directed(rows, MODEL, workers=3) as director:
        reports = director.train_replicated(batch, np.arange(len(batch[2])) % 2)
        assert [len(arrays.logits) for _, arrays in reports] == [12, 12, 0]
        first, *others = (worker.cache.take_full(director.all_slots()) for worker in director.workers)
    np.testing.assert_allclose(first, reference.rows(), rtol=1e-9, atol=1e-12)
    assert all(np.array_equal(first, other) for other in others)


def test_a_ring_takes_the_time_of_the_link() -> None:
    slept: list[float] = []
    with directed(configured(), MODEL, workers=2) as director:
        director.workers[1]._link = Link(1.0, burst_bytes=0, clock=lambda: 0.0, sleep=slept.append)
        reports = director.train_replicated(batches(1)[0], np.arange(24) % 2)
        reduced_bytes = len(director.numbering) * configured().shape().value * 8
        dense_bytes = director.workers[1].dense.weights.nbytes
    assert [report.reduced_bytes for report, _ in reports] == [reduced_bytes, reduced_bytes]
    assert [(r.dense_up_bytes, r.dense_down_bytes) for r, _ in reports] == [(dense_bytes, dense_bytes)] * 2
    # gradients of dense weights and of rows travel together
    assert slept == [pytest.approx((dense_bytes + reduced_bytes) * 8 / 1e9)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_on_cuda_equal_the_plain_loop(workers: int) -> None:
    with directed(configured(), MODEL, workers, device="cuda") as director:
        trained(director)
        compared(director, director.flushed_rows(), configured())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_same_run_twice_on_cuda_is_equal_bit_for_bit() -> None:
    results = []
    for _ in range(2):
        with directed(configured(), MODEL, workers=2, device="cuda") as director:
            trained(director)
            results.append([director.flushed_rows(), *weights(director.workers[1]).values()])
    assert all(np.array_equal(first, second) for first, second in zip(*results, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_worker_with_graphs_equals_the_plain_loop_and_has_the_bits_of_one_without() -> None:
    results = []
    for graphs in (True, False):
        with directed(configured(), MODEL, workers=1, device="cuda", graphs=graphs) as director:
            trained(director)
            rows = director.flushed_rows()
            compared(director, rows, configured())
            results.append([rows, *weights(director.workers[0]).values()])
    assert all(np.array_equal(first, second) for first, second in zip(*results, strict=True))


@pytest.mark.parametrize(("sharing", "threads"), [(1, 8), (2, 4), (3, 2), (8, 2)])
def test_workers_with_samples_share_the_cores_of_those_without(sharing: int, threads: int) -> None:
    assert threads_among(sharing, TrainerConfig(threads=2, shared_cores=8)) == threads
    assert threads_among(sharing, TrainerConfig(threads=2)) == 2


def test_the_order_says_with_how_many_threads_a_step_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    many = torch.get_num_threads() + 1
    with directed(configured(), MODEL, workers=2, shared_cores=2 * many) as director:
        trained(director, steps=2)
        assert chosen == [many] * 4
        director.flush()
        assert len(chosen) == 4, "a flush trains nothing"


def test_stopwatch_adds_up_laps_of_the_same_phase() -> None:
    watch = Stopwatch()
    watch.lap("reduce")
    first = watch.seconds.reduce
    watch.lap("reduce")
    assert watch.seconds.reduce > first


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_missing_device_is_named() -> None:
    with pytest.raises(DeviceMissing, match="cuda"):
        choose_device(TrainerConfig(device="cuda"))
