"""What the controller of alpha decides by: one reading a second."""

import msgspec


class Readings(msgspec.Struct, frozen=True):
    """Everything measured at one look. None: there is no such sensor here, or it has nothing to say yet.

    A share is of 1.
    """

    decide_p95_ms: float
    """of the decisions of the latest looks"""
    busy_ms: float | None = None
    """how long a step keeps the workers busy: as long as decisions take less, nobody waits for them"""
    decide_cpu_share: float = 1.0
    """processor time of the deciding thread within its decisions; on a GPU the rest is spent waiting for the solver"""
    wait_share: float | None = None
    """of the time in which the deciding thread wanted a processor, the share in which it had none"""
    pressure: float | None = None
    """share of the time in which some task of our cgroup, or of the machine, waited for a processor"""
    cpu_trial_ms: float | None = None
    """exact assignment of the trial batch on the CPU, as it usually is in this run"""
    cpu_slowdown: float | None = None
    """the latest ones against that"""
    gpu_trial_ms: float | None = None
    gpu_slowdown: float | None = None
    gpu_others: float | None = None
    """share of the time in which kernels of programs other than this run's ran"""
    gpu_others_memory: float | None = None
    """share of the GPU's memory that they hold"""
    workers_here: int = 0
    """workers of this run that share the processor, or the GPU that decisions are made on"""
    exact_ms: float | None = None
    """what a decision takes longer than it would by Heu alone; median of the latest steps that were compared"""
    rows_ms: float | None = None
    """what the rows of a step take on the slowest worker's link"""
    saved_share: float | None = None
    """what exact solving saves of the cost that Heu would have had, likewise"""

    def figures(self) -> dict[str, float]:
        """Those that are known, by name."""
        known = msgspec.structs.asdict(self).items()
        return {name: float(value) for name, value in known if value is not None}

    @property
    def decide_load(self) -> float | None:
        """Decision time against the step's busy time."""
        return self.decide_p95_ms / self.busy_ms if self.busy_ms else None

    @property
    def cpu_contention(self) -> float:
        """The share of the time that decisions lost to others on the CPU, as far as the sensors agree.

        Either alone may mislead: a thread that waits for Python's lock is not on a processor, though one is free, and
        one that mostly sleeps waits a little each time it wakes.
        """
        lost = max(0.0, 1.0 - self.decide_cpu_share)
        return lost if self.wait_share is None else min(lost, self.wait_share)
