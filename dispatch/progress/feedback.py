"""What completed steps teach the next decisions: link speeds, compute times, and how long a decision may take.

Nothing here changes what is learnt, only where samples are trained.

Legend: n workers.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from dispatch.config import DispatchConfig
from dispatch.placement.capacity.link_costs import LinkState, MeasuredLinks, RowCosts
from dispatch.placement.decide import Decider, relative_row_costs
from dispatch.progress.underway import OrderedRound
from dispatch.protocol import Probed, Report

RECENT_STEPS = 50
"""Number of steps whose busy times are kept."""
KNOWN_STEPS = 5
"""Steps after which the busy time counts as known."""
DECIDE_SHARE = 0.3
"""Share of the time that a step keeps workers busy, for the decision about the next one, if the clock chooses."""
UNKNOWN_GBIT = 10.0
"""Speed assumed for the fastest link if none is known."""


@dataclass(frozen=True)
class WorkerLink:
    """A worker of the current generation and the configured speed of its link."""

    name: str
    gbit: float
    """Gbit/s; 0: not known."""
    uplink_gbit: float = 0.0
    """Gbit/s of its uplink; 0: as fast as the link."""


class Feedback:
    """Learns from the reports of a run; measured links are kept across generations."""

    def __init__(self, config: DispatchConfig, is_elastic: bool, row_bytes: int, server_gbit: float = 0.0) -> None:
        """row_bytes: of a row with its state. server_gbit: of the link that all shards share; 0: it does not limit."""
        self._config = config
        self._row_bytes = row_bytes
        self._server_gbit = server_gbit
        self.is_elastic = is_elastic
        """Whether capacities follow measured times; may be set between two steps."""
        self.has_deadline = config.deadline
        """Whether decisions must be in time; may be set between two steps."""
        self._links = MeasuredLinks()
        self._workers: tuple[WorkerLink, ...] = ()
        self._busy_seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self._rows_seconds: deque[float] = deque(maxlen=RECENT_STEPS)

    def start_generation(self, workers: Sequence[WorkerLink]) -> RowCosts:
        """Sets the workers of a new generation, by number; returns the cost of a row over each of their links."""
        self._workers = tuple(workers)
        downlinks = [worker.gbit for worker in workers]
        uplinks = [worker.uplink_gbit or worker.gbit for worker in workers]
        configured = RowCosts(relative_row_costs(downlinks), relative_row_costs(downlinks, uplinks))
        return self._links.costs(self._names) if self.measures_links else configured

    @property
    def server_cost(self) -> float:
        """Cost of a row over the link that all shards share, in units of the workers' fastest; 0: it does not limit."""
        return (self._fastest_gbit or UNKNOWN_GBIT) / self._server_gbit if self._server_gbit else 0.0

    def save(self) -> dict[str, LinkState]:
        """The measured links by name; times of steps are learnt again. The counterpart of ``load``."""
        return self._links.save()

    def load(self, links: Mapping[str, LinkState]) -> None:
        self._links.load(links)

    @property
    def measures_links(self) -> bool:
        """Whether link costs are measured instead of configured."""
        if self._config.link_costs != "auto":
            return self._config.link_costs == "measured"
        return self.is_elastic and not any(worker.gbit for worker in self._workers)

    @property
    def busy_seconds(self) -> float | None:
        """How long a step keeps the workers busy; None: not known yet."""
        return median(self._busy_seconds) if len(self._busy_seconds) >= KNOWN_STEPS else None

    @property
    def rows_seconds(self) -> float | None:
        """How long the rows of a step take on the slowest worker's link; None: not known yet."""
        return median(self._rows_seconds) if len(self._rows_seconds) >= KNOWN_STEPS else None

    @property
    def budget_seconds(self) -> float | None:
        """How long the next decision may take; None: no limit.

        If the clock chooses who takes part, a decision takes at most a part of a step: the sooner it is made, the more
        of the next step's rows move while this one computes.
        """
        busy = self.busy_seconds
        if busy is not None and self.is_elastic and self._config.choose == "clock":
            return DECIDE_SHARE * busy
        return busy if self.has_deadline else None

    @property
    def late_seconds(self) -> float:
        """How long a decision may take before it is late; infinite if there is no limit."""
        return (self.busy_seconds or float("inf")) if self.has_deadline else float("inf")

    def forget_busy(self) -> None:
        """Forgets how long a step keeps workers busy, because others take part from now on."""
        self._busy_seconds.clear()
        self._rows_seconds.clear()

    def measured_gbit(self, worker: str) -> float:
        """Measured speed of a worker's link; 0: not known yet."""
        return self._links.of(worker).gbit

    def measured_uplink_gbit(self, worker: str) -> float:
        """Measured speed of a worker's uplink; 0: not known yet."""
        return self._links.uplink_of(worker).gbit

    def add_probe(self, worker: str, probed: Probed) -> bool:
        """Adds a measurement of an idle worker's link; returns whether its speed is known and about what it was."""
        down = self._links.of(worker)
        up = self._links.uplink_of(worker)
        is_known = down.add_probe(probed.link_bytes, probed.link_seconds) and down.gbit > 0.0
        return up.add_probe(probed.uplink_bytes, probed.uplink_seconds) and up.gbit > 0.0 and is_known

    def learn(self, done: OrderedRound, decider: Decider) -> None:
        """Processes the reports of a completed step; the decider gets the basis of elastic
        capacities and link costs.
        """
        reports = [done.report(worker) for worker in sorted(done.reports)]
        self._busy_seconds.append(max(report.seconds.total for report in reports))
        self._rows_seconds.append(max(_rows_seconds(report) for report in reports))
        self._learn_links(reports, decider)
        fastest_gbit = self._fastest_gbit or UNKNOWN_GBIT
        for report in reports:
            use = done.plan.workers[report.worker].use
            row_seconds = self._row_bytes * 8 / (fastest_gbit * 1e9)
            assert use is not None
            decider.measure(report.worker, use.samples.size, report.seconds.compute, row_seconds)

    def _learn_links(self, reports: Sequence[Report], decider: Decider) -> None:
        """Adds the transfers of a step."""
        for report in reports:
            name = self._workers[report.worker].name
            self._links.of(name).add(report.link_bytes, report.link_seconds)
            self._links.uplink_of(name).add(report.uplink_bytes, report.uplink_seconds)
        if self.measures_links:
            costs = self._links.costs(self._names)
            decider.charge(costs.pull_n, self.server_cost, costs.push_n)

    @property
    def _fastest_gbit(self) -> float:
        """Speed of the fastest link, configured or measured; 0 if unknown."""
        if self.measures_links:
            return self._links.fastest_gbit(self._names)
        return max((worker.gbit for worker in self._workers), default=0.0)

    @property
    def _names(self) -> list[str]:
        return [worker.name for worker in self._workers]


def _rows_seconds(report: Report) -> float:
    """How long a worker's link took for its rows, at the speed of the transfers whose time is known."""
    down = report.link_seconds / report.link_bytes if report.link_bytes else 0.0
    up = report.uplink_seconds / report.uplink_bytes if report.uplink_bytes else down
    return report.pulled_bytes * (down or up) + report.pushed_bytes * up
