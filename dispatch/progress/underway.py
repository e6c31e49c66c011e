"""The rounds that have been ordered and not yet completed, oldest first.

Reports may arrive in any order. Rounds are completed in the order in which they were ordered, each as soon as every
worker that got an order has reported it. A report that does not fit its order raises BadReport: what such a worker
trained cannot be trusted, and what the others have learnt from its gradients cannot be undone.

Legend: B samples of the batch.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatch.dense import NO_MOVES, DenseMoves
from dispatch.errors import BadReport
from dispatch.placement.rows.plan import RoundPlan, WorkerPlan
from dispatch.placement.traffic import WorkerTraffic
from dispatch.protocol import Report
from ingest.samples import Samples
from ps.phases import TRAIN

NO_LABELS = np.empty(0, np.float32)
NUMBER_BYTES = 8
"""Bytes of a row number in a message."""
LEAST_ROW_BYTES = 4
MOST_ROW_BYTES = 1 << 21
"""Bytes of one row with its state, in double precision, as wide as the settings allow."""


class Reported(NamedTuple):
    """A report as it arrived."""

    report: Report
    logits: NDArray[np.float32]
    message_bytes: int = 0
    """Bytes of both."""
    more_logits: NDArray[np.float32] = NO_LABELS
    """Logits of labels after the main one."""


@dataclass
class OrderedRound:
    """A round that has been ordered, and what its workers have reported so far."""

    step: int
    phase: int
    plan: RoundPlan
    labels_B: NDArray[np.float32] = field(default_factory=lambda: NO_LABELS)
    weights_B: NDArray[np.float32] | None = None
    """How much each sample counts; None: 1."""
    dense: DenseMoves = NO_MOVES
    order_bytes: Mapping[int, int] = field(default_factory=dict)
    """Bytes of each order, by worker number; a worker that is not in it got none, and reports nothing."""
    checkpoint: int = 0
    """The checkpoint that a flush is part of; 0: none."""
    decide_seconds: float = 0.0
    """How long it took to decide a step."""
    samples: Samples | None = None
    """The samples of a training step."""
    reports: dict[int, Reported] = field(default_factory=dict)
    """Reports by worker number."""

    @property
    def is_training(self) -> bool:
        """Whether the round trained a batch; a flush does not."""
        return self.phase == TRAIN

    @property
    def is_reported(self) -> bool:
        """Whether every worker that was ordered has reported; asked after each report, so it must not look at all."""
        return len(self.reports) == len(self.order_bytes)

    @property
    def missing(self) -> list[int]:
        """Numbers of the workers that were ordered and have not reported."""
        return [worker for worker in self.order_bytes if worker not in self.reports]

    @property
    def diverged(self) -> list[int]:
        """Numbers of the workers whose logits are not finite; honest ones report such logits when
        the model diverges.
        """
        return [worker for worker, reported in self.reports.items() if not np.isfinite(reported.logits).all()]

    def add_report(self, name: str, reported: Reported) -> None:
        """Adds the report of a worker; raises BadReport for a second one, and for one that does not fit its order."""
        report = reported.report
        if report.worker in self.reports:
            raise bad_report(name, report, "it was reported before; expected one report of each order")
        if report.worker not in self.order_bytes:
            raise bad_report(name, report, "it got no order for that; expected a report of each order and no other")
        check_report(name, report, reported.logits.size, self.plan.workers[report.worker], self.dense)
        if reported.more_logits.size != self.more_labels * reported.logits.size:
            problem = f"{reported.more_logits.size} logits of {self.more_labels} more labels; expected one a sample"
            raise bad_report(name, report, problem)
        self.reports[report.worker] = reported

    def report(self, worker: int) -> Report:
        return self.reports[worker].report

    def traffic(self, worker: int) -> WorkerTraffic:
        """What a worker trained and moved: rows as planned, bytes as reported, bytes of orders and
        reports as counted.
        """
        report, logits, report_bytes, _ = self.reports[worker]
        return self.plan.traffic.of(worker) + WorkerTraffic(
            samples=logits.size,
            pulled_bytes=report.pulled_bytes,
            pushed_bytes=report.pushed_bytes,
            reduced_bytes=report.reduced_bytes,
            dense_up_bytes=report.dense_up_bytes,
            dense_down_bytes=report.dense_down_bytes,
            order_bytes=self.order_bytes[worker],
            report_bytes=report_bytes,
        )

    def moved_bytes(self) -> int:
        """Bytes over all links, including orders and reports."""
        reported = sum(
            each.report.pulled_bytes
            + each.report.pushed_bytes
            + each.report.reduced_bytes
            + each.report.dense_up_bytes
            + each.report.dense_down_bytes
            + each.message_bytes
            for each in self.reports.values()
        )
        return reported + sum(self.order_bytes.values())

    def logits_B(self) -> NDArray[np.float32]:  # noqa: N802 (shape letters)
        """The predictions of all workers, in the order of the batch."""
        if len(self.reports) == 1:
            return next(iter(self.reports.values())).logits
        logits_B = np.empty(self.labels_B.size, np.float32)
        for worker, reported in self.reports.items():
            use = self.plan.workers[worker].use
            if use is not None:
                logits_B[use.samples] = reported.logits
        return logits_B

    @property
    def more_labels(self) -> int:
        """L, labels after the main one."""
        more_BL = None if self.samples is None else self.samples.more_labels_BL
        return 0 if more_BL is None else more_BL.shape[1]

    def more_logits_BL(self) -> NDArray[np.float32]:  # noqa: N802 (shape letters)
        """The predictions of labels after the main one."""
        logits_BL = np.empty((self.labels_B.size, self.more_labels), np.float32)
        for worker, reported in self.reports.items():
            use = self.plan.workers[worker].use
            if use is not None:
                logits_BL[use.samples] = reported.more_logits.reshape(-1, self.more_labels)
        return logits_BL


class RoundsUnderway:
    """Ordered rounds until they are complete."""

    def __init__(self) -> None:
        self._rounds: deque[OrderedRound] = deque()

    def __len__(self) -> int:
        return len(self._rounds)

    @property
    def oldest(self) -> OrderedRound:
        return self._rounds[0]

    @property
    def awaited(self) -> list[int]:
        """Numbers of the workers whose reports are missing, in any round."""
        return sorted({worker for ordered in self._rounds for worker in ordered.missing})

    def add(self, ordered: OrderedRound) -> None:
        self._rounds.append(ordered)

    def add_report(self, name: str, reported: Reported) -> None:
        """Adds the report of a worker to the round it belongs to; raises BadReport if there is none."""
        report = reported.report
        for ordered in self._rounds:
            if (ordered.step, ordered.phase) == (report.step, report.phase):
                ordered.add_report(name, reported)
                return
        ordered_rounds = [(ordered.step, ordered.phase) for ordered in self._rounds]
        raise bad_report(name, report, f"it is not under way; expected one of (step, phase) {ordered_rounds}")

    def completed(self) -> Iterator[OrderedRound]:
        """Removes and yields the oldest rounds, in order, as far as all who were ordered have reported them."""
        while self._rounds and self._rounds[0].is_reported:
            yield self._rounds.popleft()


def check_report(name: str, report: Report, logits: int, plan: WorkerPlan, dense: DenseMoves = NO_MOVES) -> None:
    """Raises BadReport unless the report fits this plan: its samples, and as many bytes as its rows take."""
    samples = 0 if plan.use is None else plan.use.samples.size
    pulled = plan.pull_full.rows.size + plan.pull_values.rows.size
    pushed = plan.push_owned.rows.size + plan.push_parts.rows.size
    most_up, most_down = dense.most_bytes(report.worker)
    dense_bytes = report.dense_up_bytes + report.dense_down_bytes
    most_linked = report.pulled_bytes + report.pushed_bytes + NUMBER_BYTES * pulled + dense_bytes
    expected = (
        ("logits", logits, samples, samples),
        ("pulled_bytes", report.pulled_bytes, LEAST_ROW_BYTES * pulled, MOST_ROW_BYTES * pulled),
        ("pushed_bytes", report.pushed_bytes, LEAST_ROW_BYTES * pushed, MOST_ROW_BYTES * pushed),
        ("reduced_bytes", report.reduced_bytes, 0, 2 * MOST_ROW_BYTES * plan.replicated),
        ("dense_up_bytes", report.dense_up_bytes, 0, most_up),
        ("dense_down_bytes", report.dense_down_bytes, 0, most_down),
        ("link_bytes", report.link_bytes, 0, most_linked),
        ("uplink_bytes", report.uplink_bytes, 0, most_linked),
    )
    for field_name, value, least, most in expected:
        if not least <= value <= most:
            bounds = f"{least}" if least == most else f"{least} to {most}"
            raise bad_report(name, report, f"{field_name} is {value}; expected {bounds}")


def bad_report(name: str, report: Report, problem: str) -> BadReport:
    return BadReport(
        f"worker {name} reported step {report.step} (phase {report.phase}), and {problem}; the dispatcher ends, "
        "because what this worker trained cannot be trusted; see its log, and run one version of Freshet in all "
        "processes"
    )
