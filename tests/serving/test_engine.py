"""Answers of the engine: joined under load, each of one snapshot, and none is lost when snapshots are swapped."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from infra.base.telemetry import Meter
from ingest.samples import Samples, join_samples
from ps.checkpoints.manifest import read_manifest
from serving.copies import Copies, ModelCopy
from serving.engine import Engine
from serving.errors import NothingServed
from serving.loading import load
from tests.api.serving import until
from tests.serving.trained import PROBE, Trained

MOST = 48


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    made = Trained(tmp_path)
    made.train().take()
    return made


@pytest.fixture
def copies(trained: Trained) -> Copies:
    made = Copies(trained.spec)
    go_to(made, trained, 1)
    return made


@pytest.fixture
def engine(copies: Copies) -> Iterator[Engine]:
    made = Engine(copies, MOST, Meter(CollectorRegistry()))
    yield made
    made.close()


def go_to(copies: Copies, trained: Trained, checkpoint: int) -> None:
    load(trained.storage, read_manifest(trained.storage, checkpoint), copies.standby)
    copies.swap()


def test_requests_that_wait_are_answered_together(
    engine: Engine, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    plain, all_wait = ModelCopy.predict_labels, threading.Event()

    def predict(self: ModelCopy, samples: Samples) -> Any:
        all_wait.wait(30)  # with the first request
        sizes.append(len(samples))
        return plain(self, samples)

    monkeypatch.setattr(ModelCopy, "predict_labels", predict)
    waiting = [engine.submit(PROBE.slice(at, at + 8)) for at in range(0, 32, 8)]
    long = engine.submit(samples := repeated(4))
    all_wait.set()
    found = np.concatenate([each.result(30).probabilities_B for each in waiting])
    assert np.abs(found - trained.expected[1]).max() < 1e-6
    assert len(long.result(30).probabilities_B) == len(samples)
    assert sum(sizes) == 32 + len(samples)
    assert max(sizes) <= MOST
    assert len(sizes) < 4 + 3  # fewer than one by one


def repeated(times: int) -> Samples:
    return join_samples([PROBE] * times)


def test_a_request_of_several_slices_is_of_one_snapshot(engine: Engine, copies: Copies, trained: Trained) -> None:
    trained.train().take()
    asking = [engine.submit(repeated(6)) for _ in range(8)]
    go_to(copies, trained, 2)
    asking += [engine.submit(repeated(6)) for _ in range(2)]
    checkpoints = []
    for each in asking:
        predicted = each.result(30)
        checkpoints.append(predicted.manifest.number)
        wanted = np.tile(trained.expected[checkpoints[-1]], 6)
        assert np.abs(predicted.probabilities_B - wanted).max() < 1e-6
    assert checkpoints == sorted(checkpoints)
    assert checkpoints[-1] == 2


def test_no_answer_mixes_snapshots_while_they_are_swapped(engine: Engine, copies: Copies, trained: Trained) -> None:
    for _ in range(5):
        trained.train().take()
    over, seen = threading.Event(), set[int]()

    def ask() -> None:
        while not over.is_set():
            predicted = engine.submit(PROBE).result(30)
            checkpoint = predicted.manifest.number
            assert np.abs(predicted.probabilities_B - trained.expected[checkpoint]).max() < 1e-6
            seen.add(checkpoint)

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for client in clients:
        client.start()
    try:
        for checkpoint in range(2, 7):
            go_to(copies, trained, checkpoint)
            until(lambda checkpoint=checkpoint: checkpoint in seen)  # type: ignore[misc]
    finally:
        over.set()
        for client in clients:
            client.join()


def test_a_request_is_answered_while_somebody_else_reads_the_same_copy(engine: Engine, copies: Copies) -> None:
    with copies.reading() as (_, manifest):
        assert engine.submit(PROBE).result(30).manifest is manifest


def test_a_copy_changes_once_nobody_reads_it_and_requests_go_to_the_other_one_meanwhile(
    engine: Engine, copies: Copies, trained: Trained
) -> None:
    for _ in range(2):
        trained.train().take()
    with copies.reading() as (copy, manifest):
        go_to(copies, trained, 2)
        loading = threading.Thread(target=go_to, args=(copies, trained, 3))
        loading.start()
        until(lambda: copy.is_changing)
        assert engine.submit(PROBE).result(30).manifest.number == 2
        assert np.abs(copy.predict(PROBE) - trained.expected[manifest.number]).max() < 1e-6
    loading.join(30)
    assert engine.submit(PROBE).result(30).manifest.number == 3


def test_a_request_that_comes_to_a_copy_as_it_begins_to_change_is_answered_by_the_other_one(
    engine: Engine, copies: Copies, trained: Trained
) -> None:
    trained.train().take()
    with copies.reading() as (copy, _):
        pass
    load(trained.storage, read_manifest(trained.storage, 2), copies.standby)
    with copy.changing():
        asked = engine.submit(PROBE)
        copies.swap()
        assert asked.result(30).manifest.number == 2


def test_before_the_first_snapshot_nothing_is_answered(trained: Trained) -> None:
    engine = Engine(Copies(trained.spec), MOST, Meter(CollectorRegistry()))
    with pytest.raises(NothingServed):
        engine.submit(PROBE).result(30)
    engine.close()


def test_what_waits_when_it_ends_is_answered(copies: Copies) -> None:
    engine = Engine(copies, MOST, Meter(CollectorRegistry()))
    waiting = [engine.submit(PROBE) for _ in range(5)]
    engine.close()
    assert all(each.done() for each in waiting)
