"""What the dispatcher has learnt about its workers, as the basis of the step model: compute, rows, links, decisions.

Transfer counts rows of the plan; the time of a row is the link's cost until seconds are measured. Compute counts only
once it is measured, decisions only if the clock chooses. Without measurements all of it is a pure function of the
sequence of batches.

Legend: n workers, U distinct rows of the batch.
"""

from collections import deque

import numpy as np

from dispatch.placement.arrays import F64, I64, Bool
from dispatch.placement.capacity.compute import ComputeTimes
from dispatch.placement.capacity.shadow import SoleShadow
from dispatch.placement.capacity.step_model import DenseLoad, ServerLoad, StepModel, sole_of

DAMPING = 0.2
"""Weight of the newest step in everything that is averaged over steps."""
RECENT_DECISIONS = 8
"""Number of decisions of which the shortest counts, so that an interruption does not."""


class WorkerKnowledge:
    """Learns step after step."""

    def __init__(
        self,
        row_cost_n: F64,
        cache_rows_n: I64,
        dense: DenseLoad,
        server_cost: float = 0.0,
        push_cost_n: F64 | None = None,
    ) -> None:
        n = row_cost_n.size
        self.row_cost_n = row_cost_n
        """Cost of a row over each downlink; may be set between two steps."""
        self.push_cost_n = row_cost_n if push_cost_n is None else push_cost_n
        """Cost of a row over each uplink, in the same unit; may be set between two steps."""
        self.server_cost = server_cost
        """Cost of a row over the link that all shards share; 0: it does not limit. May be set between two steps."""
        self._dense = dense
        self.compute = ComputeTimes(n)
        self._row_seconds = 0.0
        self._moved_n = np.zeros(n)
        """Rows in the direction that takes longer, in rows over the downlink, in the steps in which each worker had
        samples.
        """
        self._shared_n = np.zeros(n)
        """Rows in the direction in which there are more of them, in the same steps: the link that all shards share is
        equally fast in both.
        """
        self._trained_n = np.zeros(n)
        """Samples of those steps."""
        self._shadow = SoleShadow(int(cache_rows_n.max(initial=0)))
        self._decide_several, self._decide_alone = (deque[float](maxlen=RECENT_DECISIONS) for _ in range(2))
        """Seconds of the latest decisions about several workers, and about one."""

    @property
    def is_measured(self) -> bool:
        """Whether times are seconds; otherwise they are rows over the fastest link."""
        return self._row_seconds > 0.0

    def measure(
        self, worker: int, samples: int, compute_seconds: float, row_seconds: float, is_alone: bool = False
    ) -> None:
        """Records a worker's report: seconds of compute for that many samples, seconds of a row
        over the fastest link.
        """
        self.compute.add(worker, samples, compute_seconds, is_alone)
        self._row_seconds = damped(self._row_seconds, row_seconds)

    def measure_decision(self, seconds: float, is_alone: bool) -> None:
        """Records how long the newest decision took, about one worker or several."""
        (self._decide_alone if is_alone else self._decide_several).append(seconds)

    def watch(self, step: int, rows_U: I64, size_U: F64 | None = None) -> None:
        """Records the distinct rows of a batch that several workers train, and their sizes, to estimate what one would
        move of them.
        """
        self._shadow.train_batch(step, rows_U, size_U)

    def learn_rows(self, samples_n: I64, moved_n: F64, shared_n: F64 | None = None) -> None:
        """Records what each worker moved for its samples.

        moved_n, shared_n: see Elastic.shift_shares.
        """
        shared_n = moved_n if shared_n is None else shared_n
        known_n = self._trained_n > 0
        has_samples_n = samples_n > 0
        weight_n = has_samples_n * np.where(known_n, DAMPING, 1.0)
        self._moved_n += weight_n * (moved_n - self._moved_n)
        self._shared_n += weight_n * (shared_n - self._shared_n)
        self._trained_n += weight_n * (samples_n - self._trained_n)

    @property
    def row_n(self) -> F64:
        """Time of a row over each downlink; until seconds are measured, it is its cost."""
        return self.row_cost_n * (self._row_seconds or 1.0)

    @property
    def push_n(self) -> F64:
        """Time of a row over each uplink."""
        return self.push_cost_n * (self._row_seconds or 1.0)

    @property
    def both_n(self) -> F64:
        """Time of a row over each link if another one crosses it in the other direction."""
        return np.maximum(self.row_n, self.push_n)

    @property
    def link_cost_n(self) -> F64:
        """Cost of a row over the slower direction of each link."""
        return np.maximum(self.row_cost_n, self.push_cost_n)

    @property
    def push_ratio_n(self) -> F64:
        """How many rows cross each downlink while one crosses the uplink."""
        return self.push_cost_n / self.row_cost_n

    @property
    def fixed_n(self) -> F64:
        """The cost for each worker of taking part in a step with others."""
        return self._dense.rows * self.both_n + self.compute.fixed_n

    def model(self, samples: int, fields: int, least_n: I64, most_n: I64, taking_part_n: Bool) -> StepModel:
        """What a step of so many samples would take any set; taking_part_n: the present one."""
        sole = sole_of(taking_part_n)
        # of one that is alone it is known what it moves; of others, what a shadow of its cache would
        alone_rows = self._shadow.rows_a_step if sole is None else float(self._shared_n[sole])
        both_n = self.both_n
        server_row = self.server_cost * (self._row_seconds or 1.0)
        return StepModel(
            samples,
            self.fixed_n,
            np.zeros(self.row_n.size) if self.is_measured else self.compute.fixed_n,
            self._dense.whole_rows * np.maximum(self.row_n, server_row),
            self._sample_n(fields, self.compute.sample_n),
            least_n,
            most_n,
            self.is_measured,
            compute_n=self.compute.undisturbed_sample_n if self.is_measured else None,
            alone_rows_n=alone_rows * both_n,
            row_n=both_n,
            return_n=self._dense.whole_rows * np.maximum(self.push_n, server_row),
            taking_part=int(taking_part_n.sum()),
            quiet_sample_n=self._sample_n(fields, self.compute.undisturbed_sample_n) if self.is_measured else None,
            decide_several=min(self._decide_several or self._decide_alone, default=0.0),
            decide_alone=min(self._decide_alone, default=0.0),
            server=ServerLoad(server_row, self._shared_rows(fields), self._dense.rows, alone_rows),
        )

    def _sample_n(self, fields: int, compute_n: F64) -> F64:
        """What a further sample costs each worker; whose rows are not known is taken for one of the others.

        Most rows are on their way while the step before computes, so the longer of the two counts.
        """
        return np.maximum(self._rows_n(fields) * self.row_n, compute_n)

    def _rows_n(self, fields: int) -> F64:
        """Rows that each worker moves for a sample, in rows over its downlink."""
        known_n = self._trained_n > 0
        rows_n = self._moved_n / np.maximum(self._trained_n, 1e-12)
        return np.where(known_n, rows_n, self._usual_rows(fields) * np.maximum(self.push_ratio_n, 1.0))

    def _shared_rows(self, fields: int) -> float:
        """Rows that cross the link of the shards for a sample."""
        known_n = self._trained_n > 0
        rows_n = self._shared_n / np.maximum(self._trained_n, 1e-12)
        return float(np.where(known_n, rows_n, self._usual_rows(fields)).mean())

    def _usual_rows(self, fields: int) -> float:
        """Rows that a worker moves for a sample, by the mean of those of which it is known."""
        known_n = self._trained_n > 0
        return float((self._shared_n[known_n] / self._trained_n[known_n]).mean()) if known_n.any() else float(fields)


def damped(before: float, now: float) -> float:
    """The mean over steps after one more."""
    return before + DAMPING * (now - before) if before else now
