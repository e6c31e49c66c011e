"""Processes that were given different settings: the odd one is refused at once, by name and value; the others go on."""

from dataclasses import replace
from typing import Any

import pytest
import zmq

from dispatch.journal.history import read_manifests
from dispatch.protocol import FROM_DISPATCHER, TO_DISPATCHER, Admitted, Join
from infra.base.errors import ConfigError
from infra.base.process import Stop
from infra.base.wire import Codec, connect, receive, send
from ps.config import RowConfig
from ps.main import run_shard
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.test_exactness import expect_equal
from tests.end_to_end.test_stream import MORE_THAN_NEEDED
from tests.end_to_end.threads import (
    ROWS,
    RUN,
    SMALL_MODEL,
    Plan,
    Threads,
    shard_job,
    start_worker,
    train,
    train_reference,
    wait_for_steps,
)
from trainer.config import ModelConfig
from trainer.errors import Rejected

ODD: dict[str, dict[str, Any]] = {
    "rows.rate is 0.05 in the dispatcher and 0.5 in worker 'odd-1'": {"rows": RowConfig(rate=0.5)},
    "rows.dim is 16 in the dispatcher and 8 in worker 'odd-1'": {"rows": RowConfig(dim=8)},
    "rows.optimizer is adagrad in the dispatcher and sgd in worker 'odd-1'": {"rows": RowConfig(optimizer="sgd")},
    "rows.float_dtype is float32 in the dispatcher and float64 in worker 'odd-1'": {
        "rows": RowConfig(float_dtype="float64")
    },
    "model.dense_rate is 0.003 in the dispatcher and 0.03 in worker 'odd-1'": {
        "model": SMALL_MODEL.model_copy(update={"dense_rate": 0.03})
    },
    "model.mlp is [16,8] in the dispatcher and [16] in worker 'odd-1'": {
        "model": ModelConfig(mlp=(16,), cross_layers=1)
    },
}


def test_a_worker_with_any_other_setting_is_refused_and_harms_nobody(write_topic: WriteTopic) -> None:
    plan, told, seen = Plan(write_topic(MORE_THAN_NEEDED), workers=1, batch=32), list[str](), Stop()

    def disturb(_: Threads, dispatcher: str, shards: tuple[str, ...]) -> None:
        wait_for_steps(plan, 2)
        for changed in ODD.values():
            odd = Threads()
            start_worker(odd, replace(plan, **changed), "odd-1", dispatcher)
            with pytest.raises(Rejected) as caught:
                odd.join()
            told.append(str(caught.value))
        wait_for_steps(plan, 1 + len(read_manifests(plan.folder / "journal")))
        seen.request("the run went on")

    result = train(plan, seen, disturb)
    assert [expected for expected, found in zip(ODD, told, strict=True) if expected not in found] == []
    assert result.status.generation == 1
    assert result.status.samples == sum(m.samples for m in result.manifests) < MORE_THAN_NEEDED
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"rows": ROWS.model_copy(update={"rate": 0.5})}, "rows.rate is 0.05 in the dispatcher and 0.5 in shard 0"),
        ({"shards": 3}, "shard 0 of 3 offered itself to a run with shards 0 to 1"),
    ],
)
def test_a_shard_with_any_other_setting_is_refused_and_harms_nobody(
    write_topic: WriteTopic, changed: dict[str, Any], expected: str
) -> None:
    plan, told, seen = Plan(write_topic(MORE_THAN_NEEDED), workers=1, batch=32), list[str](), Stop()

    def disturb(_: Threads, dispatcher: str, _shards: tuple[str, ...]) -> None:
        wait_for_steps(plan, 2)
        with pytest.raises(ConfigError) as caught:
            run_shard(shard_job(replace(plan, **changed), 0, dispatcher), Stop(), lambda _: None)
        told.append(str(caught.value))
        wait_for_steps(plan, 1 + len(read_manifests(plan.folder / "journal")))
        seen.request("the run went on")

    result = train(plan, seen, disturb)
    assert expected in told[0]
    assert result.status.generation == 1
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


def test_one_that_joins_and_then_is_silent_holds_nobody_up(write_topic: WriteTopic) -> None:
    plan, heard, seen = Plan(write_topic(MORE_THAN_NEEDED), workers=1, batch=32), list[Any](), Stop()

    def disturb(_: Threads, dispatcher: str, _shards: tuple[str, ...]) -> None:
        wait_for_steps(plan, 2)
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            connect(socket, dispatcher)
            join = Join(run=RUN, generation=0, step=0, worker="mute", settings=dict(plan.agreement.workers))
            send(socket, Codec(*TO_DISPATCHER), join)
            heard.append(receive(socket, Codec(*FROM_DISPATCHER))[0])
        wait_for_steps(plan, 5 + len(read_manifests(plan.folder / "journal")))
        seen.request("the run went on")

    result = train(plan, seen, disturb)
    assert isinstance(heard[0], Admitted)
    assert result.status.generation == 1
    assert result.status.samples == sum(m.samples for m in result.manifests) < MORE_THAN_NEEDED
