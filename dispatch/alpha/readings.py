"""What the controller of alpha bases its decisions on: one reading per second."""

import msgspec


class Readings(msgspec.Struct, frozen=True):
    """Everything measured at one time. None: there is no such sensor here, or it has no value yet. Shares are from 0 to
    1.
    """

    decide_p95_ms: float
    """95th percentile of the decisions of the latest readings."""
    busy_ms: float | None = None
    """How long a step keeps the workers busy: while decisions take less, nobody waits for them."""
    decide_cpu_share: float = 1.0
    """Share of its decisions in which the deciding thread used the processor; with a GPU the rest is waiting for the
    solver.
    """
    wait_share: float | None = None
    """Share of the time in which the deciding thread was ready to run but had no processor."""
    pressure: float | None = None
    """Share of the time in which some task of our cgroup, or of the machine, waited for a processor."""
    cpu_trial_ms: float | None = None
    """Usual time in this run for the exact assignment of the trial batch on the CPU."""
    cpu_slowdown: float | None = None
    """Time of the latest trials relative to that."""
    gpu_trial_ms: float | None = None
    gpu_slowdown: float | None = None
    gpu_others: float | None = None
    """Share of the time in which kernels of programs other than this run's ran."""
    gpu_others_memory: float | None = None
    """Share of the GPU's memory that they hold."""
    workers_here: int = 0
    """Workers of this run that share the processor, or the GPU on which decisions are made."""
    exact_ms: float | None = None
    """How much longer a decision takes than by Heu alone; median of the latest steps that were compared."""
    rows_ms: float | None = None
    """Time that the rows of a step take on the slowest worker's link."""
    saved_share: float | None = None
    """Share of Heu's cost that exact solving saves; median of the same steps."""

    def figures(self) -> dict[str, float]:
        """The known readings, by name."""
        known = msgspec.structs.asdict(self).items()
        return {name: float(value) for name, value in known if value is not None}

    @property
    def decide_load(self) -> float | None:
        """Decision time relative to the step's busy time."""
        return self.decide_p95_ms / self.busy_ms if self.busy_ms else None

    @property
    def cpu_contention(self) -> float:
        """The share of the time that decisions lost to others on the CPU, as far as the sensors agree.

        Each alone may mislead: a thread that waits for Python's lock is not on a processor, although one is free, and
        one that mostly sleeps waits a little each time it wakes up.
        """
        lost = max(0.0, 1.0 - self.decide_cpu_share)
        return lost if self.wait_share is None else min(lost, self.wait_share)
