"""One worker: a cache of rows, a dense replica, and the steps that it is ordered to take.

For every order, in this order:

  1. push      rows that the plan names leave their slots for the PS
  2. pull      missing or outdated rows arrive in the slots that the plan names, and dense weights, each shard's as soon
               as it answers; if the next order is known, 1 and 2 of it then begin for rows that do not depend on this
               step (trainer/transfers.py)
  3. forward   logits of the micro-batch with the current weights: the prequential predictions
  4. backward  of the loss times the weights of samples, summed over the micro-batch and divided by the size of the
               whole batch; for rows, by that of a full batch (trainer/rows.py)
  5. reduce    in a ring: dense gradients, and those of replicated rows, are summed over all workers (while 6 runs) and
               the dense weights change; alone: the dense weights change; otherwise the gradient is sent to the shards
  6. rows      used by this worker alone: the optimizer is applied in the cache; shared rows: the slot's value, which
               everybody must pull again, is overwritten with this worker's part of the gradient; replicated rows: the
               optimizer is applied to the sum, which has the same bits everywhere, so replicas stay equal
  7. report    logits, seconds of each phase, bytes in each direction

A FLUSH is 1 and 7 only. A worker without samples in a step still takes part in a ring, and its replicas in 6; with the
hub it moves nothing dense, and gets no order if it has no row to push or pull either. Nothing here survives a crash.

Legend: b samples of the micro-batch, F keys per sample, N dense inputs, U rows it uses, A of them used by nobody else,
R replicated ones that anyone uses, D embedding columns, W columns of a value.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dispatch.placement.traffic import ring_moved
from dispatch.protocol import Order, OrderArrays, Probe, Probed, Report, ReportArrays, Welcome
from dispatch.tally import PHASES, Phase, PhaseSeconds
from infra.base.faults import reach
from infra.base.trace import note
from infra.base.wire import NO_F32
from ps.client import ShardClient
from ps.columns import KeptColumns
from ps.phases import TRAIN
from ps.protocol import WHOLE
from trainer.cache import RowCache
from trainer.config import TrainerConfig
from trainer.dense import Dense
from trainer.errors import DeviceMissing
from trainer.job import WorkerJob
from trainer.labels import smoothed
from trainer.models.registry import build_model
from trainer.passes import Graphs, MicroBatch, Pass, fetch
from trainer.reduce import TRANSPORTS, AloneGroup, DenseGroup, Rendezvous, form_group
from trainer.rows import RowOptimizer, float_type, kept_mask, summed_over
from trainer.transfers import Transfers

Logits = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Of the main label, and of the others."""


def _nothing() -> None:
    return None


def _no_logits() -> NDArray[np.float32]:
    return NO_F32


def _nothing_scored() -> Logits:
    return NO_F32, NO_F32


Upcoming = Callable[[], tuple[Order, OrderArrays] | None]
"""Returns the next order if it has arrived, without removing it."""


@dataclass
class Gathered:
    """The rows that a step uses: a copy from the cache, and their gradients."""

    slots_U: Tensor
    values_UW: Tensor
    gradients_UW: Tensor | None = None
    """None: no sample of this worker uses them."""
    uses_U: Tensor | None = None
    """How often the samples use each row, if rows can be pruned."""


class Worker:
    """Executes one order at a time."""

    def __init__(self, job: WorkerJob, client: ShardClient, rendezvous: Rendezvous) -> None:
        self.device = choose_device(job.trainer)
        self._shape = job.rows.shape()
        self._dtype = float_type(job.rows)
        self._fields = job.fields
        self._transport = TRANSPORTS[job.trainer.reduce]
        self._client = client
        self._rendezvous = rendezvous
        self._link = job.link
        self._job = job
        self.dense = self._start_values()
        self._optimizer = RowOptimizer(job.rows, self.device)
        self._kept: KeptColumns = ()
        self._is_kept_W: Tensor | None = None
        """1 for value columns that rows have kept, 0 for those they have dropped; None: none was."""
        self._group: DenseGroup = AloneGroup()
        self._number = 0
        self._workers = 1
        self._uses_hub = False
        self.cache = RowCache(0, self._shape, self._dtype, self.device)
        self._transfers = Transfers(client, self.cache, self.dense)

    def begin(self, welcome: Welcome) -> None:
        """Enters a generation, with an empty cache unless it keeps its own; in a ring, with a new process group and
        rank 0's dense weights.
        """
        self.close()
        self._number = welcome.worker
        self._workers = len(welcome.names)
        self._uses_hub = welcome.uses_hub
        self._client.connect(welcome.shards)
        self._client.open(welcome.generation, welcome.worker)
        if welcome.starts_anew:
            self.dense = self._start_values()
        if not welcome.keeps_cache:
            self.cache = RowCache(welcome.cache_rows, self._shape, self._dtype, self.device)
        self._transfers = Transfers(self._client, self.cache, self.dense)
        if self._uses_hub:
            return
        if welcome.takes_dense and welcome.worker == 0:
            self._take_dense()
        name = f"{welcome.run}/{welcome.generation}"
        self._group = form_group(self._rendezvous, name, welcome.worker, welcome.names, self.device, self._transport)
        self._group.broadcast(self.dense.tensors())

    def execute(self, order: Order, work: OrderArrays, upcoming: Upcoming = _nothing) -> tuple[Report, ReportArrays]:
        """Carries out one order and returns its report with the logits; upcoming: returns the next order if it has
        arrived.
        """
        watch = Stopwatch()
        if order.phase == TRAIN:
            self._keep_columns(tuple(work.columns.tolist()))
        else:
            reach("checkpoint_flush", order.step)
        self._transfers.begin_late(order, work)
        watch.lap("push")
        logits = more_logits = NO_F32
        ring_bytes = 0
        if order.phase == TRAIN:
            self._transfers.finish(order, work)
            watch.lap("pull")
            self._share_cores(order)
            ring_bytes = self._ring_bytes(order)
            logits, more_logits = self._train(order, work, watch, upcoming)
        moved = self._transfers.moved
        link = self._client.take_link_times()
        report = Report(
            run=order.run,
            generation=order.generation,
            step=order.step,
            phase=order.phase,
            worker=self._number,
            seconds=watch.seconds,
            pulled_bytes=moved.rows_down,
            pushed_bytes=moved.rows_up,
            reduced_bytes=self._reduced_bytes(order),
            dense_up_bytes=moved.dense_up + ring_bytes,
            dense_down_bytes=moved.dense_down + ring_bytes,
            link_bytes=link.down_bytes,
            link_seconds=link.down_seconds,
            uplink_bytes=link.up_bytes,
            uplink_seconds=link.up_seconds,
        )
        return report, ReportArrays(logits=logits, more_logits=more_logits.reshape(-1))

    def time_link(self, probe: Probe) -> Probed:
        """Measures how fast the link to the shards is."""
        link = self._client.time_link(probe.link_bytes)
        return Probed(
            run=probe.run,
            generation=probe.generation,
            step=probe.step,
            worker=self._number,
            link_bytes=link.down_bytes,
            link_seconds=link.down_seconds,
            uplink_bytes=link.up_bytes,
            uplink_seconds=link.up_seconds,
        )

    def newest_dense(self) -> Dense:
        """The dense weights as the shards have them after a flush."""
        self._take_dense()
        return self.dense

    def close(self) -> None:
        """Leaves the process group and drops it."""
        self._group.close()
        self._group = AloneGroup()

    def _start_values(self) -> Dense:
        """The dense weights that a run begins with, without optimizer state."""
        job = self._job
        self.model = build_model(
            config=job.model,
            fields=job.fields - job.crosses,
            dim=job.rows.dim,
            dense=job.dense,
            seed=job.seed,
            dtype=self._dtype,
            device=self.device,
            crosses=job.crosses,
            pools=job.pools,
            labels=job.labels,
        )
        dense = Dense(self.model, job.model)
        # a model of another package may do what cannot be captured
        is_captured = self.device.type == "cuda" and job.trainer.graphs and not job.model.is_plugged
        self._graphs = Graphs(self.model, dense, job.rows.dim, job.batch) if is_captured else None
        return dense

    def _keep_columns(self, kept: KeptColumns) -> None:
        """Notes which embedding columns rows have kept; shards send the others as zeros."""
        if kept != self._kept:
            self._kept = kept
            self._client.keep_columns(kept)
            self._is_kept_W = None if not kept else kept_mask(self._job.rows, kept, self.device)

    def _take_dense(self) -> None:
        for shard, floats in enumerate(self._client.peek_dense()):
            self.dense.put(WHOLE, shard, self._client.shards, floats)

    def _share_cores(self, order: Order) -> None:
        """Uses the cores of workers that have no samples in this step.

        Results may be rounded differently with another number of threads; the number follows from the order, so that a
        step that is repeated has the same bits.
        """
        if not self._job.trainer.shared_cores or not order.samples or self.device.type != "cpu":
            return
        if (threads := threads_among(order.sharing, self._job.trainer)) != torch.get_num_threads():
            torch.set_num_threads(threads)

    def _train(self, order: Order, work: OrderArrays, watch: "Stopwatch", upcoming: Upcoming) -> Logits:
        gathered = None
        fetched: Callable[[], Logits] = _nothing_scored
        self._look_ahead(order, upcoming, watch)
        self.dense.clear()
        if order.samples or order.replicated:
            gathered = self._gather(work)
        if order.samples and gathered is not None:
            fetched = self._compute(order, work, gathered, watch, upcoming)
        if order.batch:
            gradients_UW = self._row_gradients(gathered)
            ordinary = len(gradients_UW) - order.replicated
            summed_RW = gradients_UW[ordinary:]
            finish = self._start_sums(order, summed_RW)
            self._look_ahead(order, upcoming, watch, is_gradient_sent=True)
            watch.lap("reduce")
            if gathered is not None:
                self._update_ordinary(order, gathered, gradients_UW[:ordinary])
                watch.lap("rows")
            finish()
            watch.lap("reduce")
            if gathered is not None and order.replicated:
                self._update_replicas(gathered.slots_U[ordinary:], gathered.values_UW[ordinary:], summed_RW)
                watch.lap("rows")
        logits = fetched()
        watch.lap("backward")  # a GPU may still be computing
        return logits

    def _compute(
        self, order: Order, work: OrderArrays, gathered: Gathered, watch: "Stopwatch", upcoming: Upcoming
    ) -> Callable[[], Logits]:
        """Computes the gradients of a micro-batch; returns what waits for its logits."""
        micro = self._micro_batch(order, work, gathered.values_UW)
        if self._shape.chunks:
            used = micro.positions_bF.view(-1)
            gathered.uses_U = torch.bincount(used, minlength=len(gathered.slots_U)).to(self._dtype)
        graph = None if self._graphs is None else self._graphs.find(micro)
        computed = Pass(self.model, self._shape.dim, micro) if graph is None else graph.run(micro)
        fetched = fetch(computed.logits_b)
        more = _no_logits if computed.more_logits_bL is None else fetch(computed.more_logits_bL)
        reach("forward", order.step)
        watch.lap("forward")
        self._look_ahead(order, upcoming, watch)
        gathered.gradients_UW = summed_over(computed.backward(), order.batch, self._job.batch)
        reach("backward", order.step)
        watch.lap("backward")
        return lambda: (fetched(), more())

    def _look_ahead(self, order: Order, upcoming: Upcoming, watch: "Stopwatch", is_gradient_sent: bool = False) -> None:
        """Begins the early transfers of the next order, if it has arrived and belongs to the next step.

        In the order of a later step, rows that this step trains may be early: only rows of the step right before it are
        late. A GPU computes by itself, and others wait for the gradient: there, rows are fetched from the GPU after it.
        """
        if (following := upcoming()) is not None and following[0].step == order.step + 1:
            if self.device.type == "cpu" or is_gradient_sent or not order.owes_gradient:
                self._transfers.begin_early(*following)
            else:
                self._transfers.ask_early(*following)
        watch.lap("push")

    def _start_sums(self, order: Order, gradients_RW: Tensor) -> Callable[[], None]:
        """Starts summing dense gradients, and in a ring those of replicated rows, over all workers; the result waits
        for the sums and changes the dense weights.

        With the hub, one of several workers sends its gradient to the shards, and they change the weights. In a ring
        all gradients travel together: a second sum would wait for as many turns again.
        """
        if order.owes_gradient:
            self._transfers.push_gradient(order)
        if order.owes_gradient or (self._uses_hub and not order.samples):
            return _nothing
        self._link.exchange(self._ring_bytes(order) + self._reduced_bytes(order))
        dense = self.dense.gradients
        together = torch.cat((dense, gradients_RW.reshape(-1))) if order.replicated else dense
        summed = self._group.start_sum(together)

        def finish() -> None:
            summed()
            if order.replicated:
                dense.copy_(together[: dense.numel()])
                gradients_RW.copy_(together[dense.numel() :].view_as(gradients_RW))
            self.dense.step()

        return finish

    def _gather(self, work: OrderArrays) -> Gathered:
        slots_U = self.cache.index(work.used_slots)
        return Gathered(slots_U, self.cache.values_CW.index_select(0, slots_U))

    def _floats(self, received: NDArray[np.float32]) -> Tensor:
        """A copy: kernels give equal bits only for equally aligned memory, and a message may begin anywhere."""
        return self.cache.tensor(received).to(self._dtype, copy=True)

    def _micro_batch(self, order: Order, work: OrderArrays, values_UW: Tensor) -> MicroBatch:
        smoothing = self._job.model.label_smoothing
        return MicroBatch(
            values_UW=values_UW,
            positions_bF=self.cache.index(work.positions).view(order.samples, self._fields),
            dense_bN=self._floats(work.dense).view(order.samples, -1),
            labels_b=smoothed(self.cache.tensor(work.labels).to(self._dtype), smoothing),
            batch=order.batch,
            weights_b=self._floats(work.weights) if work.weights.size else None,
            shares_bP=self._floats(work.shares).view(order.samples, -1) if work.shares.size else None,
            more_labels_bL=smoothed(self._floats(work.more_labels).view(order.samples, -1), smoothing)
            if work.more_labels.size
            else None,
        )

    def _row_gradients(self, gathered: Gathered | None) -> Tensor:
        """The gradients of the used rows: zeros without samples, and for columns that rows have dropped."""
        if gathered is None:
            return self.cache.values_CW[:0]
        gradients_UW = gathered.gradients_UW
        if gradients_UW is None:
            return torch.zeros_like(gathered.values_UW)
        return gradients_UW if self._is_kept_W is None else gradients_UW * self._is_kept_W

    def _update_ordinary(self, order: Order, gathered: Gathered, gradients_UW: Tensor) -> None:
        alone = order.alone
        slots_U = gathered.slots_U[: len(gradients_UW)]
        values_UW = gathered.values_UW[: len(gradients_UW)]
        uses_U = gathered.uses_U
        uses_A = None if uses_U is None else uses_U[:alone]
        state_AS = self.cache.state_CS.index_select(0, slots_U[:alone])
        self._optimizer.update_(values_UW[:alone], state_AS, gradients_UW[:alone], uses_A, order.weight)
        values_UW[alone:] = gradients_UW[alone:]
        self.cache.values_CW.index_copy_(0, slots_U, values_UW)
        self.cache.state_CS.index_copy_(0, slots_U[:alone], state_AS)
        if uses_U is not None:
            self.cache.put_uses(slots_U[alone:], uses_U[alone : len(gradients_UW)], order.weight)

    def _update_replicas(self, slots_R: Tensor, values_RW: Tensor, summed_RW: Tensor) -> None:
        state_RS = self.cache.state_CS.index_select(0, slots_R)
        self._optimizer.update_(values_RW, state_RS, summed_RW)
        self.cache.values_CW.index_copy_(0, slots_R, values_RW)
        self.cache.state_CS.index_copy_(0, slots_R, state_RS)

    def _ring_bytes(self, order: Order) -> int:
        """Bytes sent to sum dense gradients in a ring; as many come back."""
        if self._uses_hub or not order.batch:
            return 0
        return ring_moved(self._workers, self.dense.gradients.numel() * self.dense.gradients.element_size())

    def _reduced_bytes(self, order: Order) -> int:
        summed = order.replicated * self._shape.value * self.cache.values_CW.element_size()
        return ring_moved(self._workers, summed)


class Stopwatch:
    """Seconds spent in each phase of a step; laps of the same phase are added up."""

    def __init__(self) -> None:
        self._spent: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self._since = time.monotonic()

    @property
    def seconds(self) -> PhaseSeconds:
        return PhaseSeconds(**self._spent)

    def lap(self, phase: Phase) -> None:
        """Adds the time since the last lap to this phase."""
        now = time.monotonic()
        self._spent[phase] += now - self._since
        note(phase, self._since, now)
        self._since = now


def threads_among(sharing: int, trainer: TrainerConfig) -> int:
    """Torch threads of a worker in a step in which so many workers have samples."""
    return max(1, trainer.threads, trainer.shared_cores // sharing)


def choose_device(config: TrainerConfig) -> torch.device:
    """The device of the settings; auto uses CUDA if there is a GPU."""
    there = torch.cuda.is_available()
    if config.device == "cuda" and not there:
        raise DeviceMissing(
            "device 'cuda' is set and torch finds none here; expected a GPU and its driver; set 'auto' or 'cpu'"
        )
    if config.device == "cpu" or not there:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
