"""The rounds that have been ordered and not yet completed, oldest first.

Reports may arrive in any order. Rounds are completed in the order in which they were ordered, each as soon as every
worker has reported it.

Legend: B samples of the batch.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dispatch.protocol import Report
from dispatch.rows.plan import RoundPlan
from dispatch.tally import WorkerTraffic
from ps.protocol import TRAIN

NO_LABELS = np.empty(0, np.float32)


@dataclass
class OrderedRound:
    """A round that has been ordered, and what its workers have reported so far."""

    step: int
    phase: int
    plan: RoundPlan
    labels_B: NDArray[np.float32] = field(default_factory=lambda: NO_LABELS)
    reports: dict[int, tuple[Report, NDArray[np.float32]]] = field(default_factory=dict)
    """report and logits by worker number"""

    @property
    def is_training(self) -> bool:
        """Whether the round trained a batch; a flush does not."""
        return self.phase == TRAIN

    @property
    def missing(self) -> list[int]:
        """Numbers of the workers that have not reported."""
        return [worker for worker in range(len(self.plan.workers)) if worker not in self.reports]

    def report(self, worker: int) -> Report:
        return self.reports[worker][0]

    def traffic(self, worker: int) -> WorkerTraffic:
        """What a worker trained and moved: rows as planned, bytes as reported."""
        report, logits = self.reports[worker]
        return self.plan.traffic.of(worker) + WorkerTraffic(
            samples=logits.size,
            pulled_bytes=report.pulled_bytes,
            pushed_bytes=report.pushed_bytes,
            reduced_bytes=report.reduced_bytes,
        )

    def logits_B(self) -> NDArray[np.float32]:  # noqa: N802 (shape letters)
        """The predictions of all workers, in the order of the batch."""
        logits_B = np.empty(self.labels_B.size, np.float32)
        for worker, (_, logits) in self.reports.items():
            use = self.plan.workers[worker].use
            if use is not None:
                logits_B[use.samples] = logits
        return logits_B


class RoundsUnderway:
    """Ordered rounds until they are complete."""

    def __init__(self) -> None:
        self._rounds: deque[OrderedRound] = deque()

    def __len__(self) -> int:
        return len(self._rounds)

    @property
    def oldest(self) -> OrderedRound:
        return self._rounds[0]

    def add(self, ordered: OrderedRound) -> None:
        self._rounds.append(ordered)

    def add_report(self, report: Report, logits: NDArray[np.float32]) -> None:
        """Adds a report to the round it belongs to; one of a round that is complete is ignored."""
        for ordered in self._rounds:
            if (ordered.step, ordered.phase) == (report.step, report.phase):
                ordered.reports[report.worker] = report, logits

    def completed(self) -> Iterator[OrderedRound]:
        """Removes and yields the oldest rounds, in order, as far as every worker has reported them."""
        while self._rounds and not self._rounds[0].missing:
            yield self._rounds.popleft()
