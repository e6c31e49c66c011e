"""Orders, made from the plan of a round: what each worker has to move and to train.

A member that has nothing to do in a round gets no order and reports nothing: parked workers cost a step no message, and
it waits for none of them.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dispatch.dense import DenseMoves
from dispatch.placement.rows.plan import WorkerPlan
from dispatch.protocol import Early, Order, OrderArrays
from infra.base.wire import NO_F32
from ingest.samples import Samples
from ps.phases import TRAIN

Orders = dict[int, tuple[Order, OrderArrays]]
"""Orders by number of the member, for those that have something to do."""


def training_orders(
    at: dict[str, Any],
    plans: tuple[WorkerPlan, ...],
    samples: Samples,
    dense: DenseMoves,
    weight: float = 0.0,
    columns: tuple[int, ...] = (),
) -> Orders:
    """Every member's part of a training step; at: run, generation and step; weight: of a use, see Order; columns: those
    that rows have kept, empty if all.
    """
    kept = np.array(columns, np.int32)
    sharing = sum(plan.use is not None and plan.use.samples.size > 0 for plan in plans)
    common = {**at, "sharing": sharing, "weight": weight}
    orders = {number: _training(common, number, plan, samples, dense) for number, plan in _ordered(plans, dense)}
    return {number: (order, arrays._replace(columns=kept)) for number, (order, arrays) in orders.items()}


def flush_orders(at: dict[str, Any], phase: int, plans: tuple[WorkerPlan, ...], dense: DenseMoves) -> Orders:
    """Every member writes back its owned and split rows, and its dense weights."""
    sizes: dict[str, Any] = {"samples": 0, "batch": 0, "alone": 0}
    return {
        number: (Order(**at, phase=phase, **sizes, gives_dense=number == dense.giver), _moves(plan))
        for number, plan in _ordered(plans, dense)
    }


def _ordered(plans: tuple[WorkerPlan, ...], dense: DenseMoves) -> Iterator[tuple[int, WorkerPlan]]:
    """The members that have something to do."""
    for number, plan in enumerate(plans):
        if not plan.is_empty or dense.involve(number):
            yield number, plan


def _training(
    common: dict[str, Any], number: int, plan: WorkerPlan, samples: Samples, dense: DenseMoves
) -> tuple[Order, OrderArrays]:
    assert plan.use is not None
    # one worker that trains all of them needs no copies
    mine = plan.use.samples if plan.use.samples.size < len(samples.labels_B) else slice(None)
    header = Order(
        **common,
        phase=TRAIN,
        samples=plan.use.samples.size,
        batch=len(samples.labels_B),
        alone=plan.use.alone,
        replicated=plan.replicated,
        early=_early(plan),
        gives_dense=number == dense.giver,
        dense_pull=dense.pulled_by(number),
        owes_gradient=number in dense.gradients,
    )
    arrays = _moves(plan)._replace(
        used_slots=plan.use_slots,
        positions=plan.use.positions,
        dense=samples.dense_BN[mine].reshape(-1),
        labels=samples.labels_B[mine],
        weights=NO_F32 if samples.weights_B is None else samples.weights_B[mine],
        shares=NO_F32 if samples.shares_BP is None else samples.shares_BP[mine].reshape(-1),
        more_labels=NO_F32 if samples.more_labels_BL is None else samples.more_labels_BL[mine].reshape(-1),
    )
    return header, arrays


def _moves(plan: WorkerPlan) -> OrderArrays:
    """The rows that a plan moves, without samples."""
    return OrderArrays(
        owned_rows=plan.push_owned.rows,
        owned_slots=plan.push_owned.slots,
        part_rows=plan.push_parts.rows,
        part_slots=plan.push_parts.slots,
        full_rows=plan.pull_full.rows,
        full_slots=plan.pull_full.slots,
        value_rows=plan.pull_values.rows,
        value_slots=plan.pull_values.slots,
    )


def _early(plan: WorkerPlan) -> Early:
    return Early(
        owned=plan.push_owned.early,
        parts=plan.push_parts.early,
        full=plan.pull_full.early,
        values=plan.pull_values.early,
        evicted_owned=plan.push_owned.evicted,
        evicted_parts=plan.push_parts.evicted,
    )
