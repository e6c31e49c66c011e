"""Whether replicated rows pay, by the clock, in a ring that the clock has chosen.

Which rows cost less in a ring is counted in bytes (dispatch/placement/rows/two_fold.py). A replica also costs processor
time on every worker, so where processors limit, a run that moves fewer bytes can be slower. So the first set of a
generation is a trial:

1. *known*: rows are replicated once the time of the steps without them is known (TRIAL_STEPS of them), and after a loss
   only after a wait that doubles.
2. *tried*: as many steps with them are measured. The first of a set are left out, in which every worker pulls it.
3. *confirmed or taken back*: rows stay replicated, and exchanged at checkpoints, if these steps were faster. Otherwise
   they leave at the next checkpoint. So they do if other workers take part meanwhile, since then nothing is comparable.

What is replicated is recorded in the journal, so a replay needs none of this.
"""

from collections import deque
from dataclasses import dataclass
from statistics import median

from dispatch.placement.capacity.set_times import LEAST_WAIT, LEFT_OUT, MOST_WAIT

TRIAL_STEPS = 64
"""Steps that are compared, without replicas and with them."""


@dataclass(frozen=True)
class ReplicaVerdict:
    """What a trial has shown."""

    pays: bool
    seconds: float
    """Of a step with replicas."""
    seconds_without: float

    def facts(self) -> dict[str, str | float]:
        """The verdict in numbers, for a log."""
        reason = "were faster when measured" if self.pays else "were slower when measured"
        with_, without = (float(f"{each:.4g}") for each in (self.seconds, self.seconds_without))
        return {"reason": reason, "step_seconds": with_, "step_seconds_without": without}


class ReplicaTrial:
    """Learns how long steps take without replicas and with them."""

    def __init__(self) -> None:
        self._is_open = False
        """Whether the clock decides in this generation."""
        self._is_confirmed = False
        """Whether replicas have won their trial in this generation."""
        self._has_replicas = False
        """Whether the measured steps have any."""
        self._changes: deque[tuple[int, bool]] = deque()
        """Steps not measured yet that begin with the first replicas or without the last ones."""
        self._steps = 0
        """Measured steps since the latest such change."""
        self._losses = 0
        self._without: deque[float] = deque(maxlen=TRIAL_STEPS)
        """Seconds of the latest steps without replicas, in one stay."""
        self._with: list[float] = []

    @property
    def allows(self) -> bool:
        """Whether rows may be replicated from now on."""
        if not self._is_open or self._is_confirmed:
            return True
        is_known = len(self._without) == TRIAL_STEPS
        if self._has_replicas:
            return is_known and len(self._with) < TRIAL_STEPS
        wait = min(LEAST_WAIT << min(self._losses, 16), MOST_WAIT) if self._losses else 0
        return is_known and self._steps >= wait

    def start_generation(self, is_open: bool) -> None:
        """is_open: whether the clock decides in it; otherwise all rows are replicated that save bytes."""
        self._is_open = is_open
        self._is_confirmed = False
        self._begin(has_replicas=False)
        self._changes.clear()

    def forget_steps(self) -> None:
        """Discards what was measured, because other workers take part from now on."""
        self._without.clear()
        self._with.clear()

    def choose(self, step: int, rows: int) -> None:
        """Records how many rows are replicated from this step on."""
        latest = self._changes[-1][1] if self._changes else self._has_replicas
        if bool(rows) != latest:
            self._changes.append((step, bool(rows)))

    def measure(self, step: int, seconds: float, is_settled: bool) -> ReplicaVerdict | None:
        """Records how long a step took; returns the verdict if the trial is over.

        is_settled: whether it is found who takes part, and the ring is there to stay.
        """
        while self._changes and self._changes[0][0] <= step:
            self._begin(self._changes.popleft()[1])
        self._steps += 1
        if not self._is_open or self._is_confirmed or not is_settled or self._steps <= LEFT_OUT:
            return None
        if not self._has_replicas:
            self._without.append(seconds)
            return None
        if not self._without:
            return None
        self._with.append(seconds)
        return self._judge() if len(self._with) == TRIAL_STEPS else None

    def _begin(self, has_replicas: bool) -> None:
        self._has_replicas = has_replicas
        self._steps = 0
        self._with.clear()
        if not has_replicas:
            self._without.clear()

    def _judge(self) -> ReplicaVerdict:
        now, before = median(self._with), median(self._without)
        self._is_confirmed = now < before
        self._losses += not self._is_confirmed
        return ReplicaVerdict(self._is_confirmed, now, before)
