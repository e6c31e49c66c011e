"""Applies the run's settings, what operators have set instead, and what the dispatcher adapts itself.

Every change takes effect between two decisions. A policy that needs a different setup of the dispatcher than the one
before (replicas, another synchronisation, elastic capacities) needs a new generation, which starts at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic, time

import msgspec
import structlog

from dispatch.alpha.controller import AlphaChange
from dispatch.alpha.pilot import AlphaPilot
from dispatch.alpha.window import StepSeconds
from dispatch.commands.desired import NONE, Desired
from dispatch.commands.shares import wanted_bounds
from dispatch.config import DispatchConfig
from dispatch.intake import Intake
from dispatch.job import DispatchJob
from dispatch.journal.records import AlphaChanged
from dispatch.placement.assign.backend import choose_backend, has_gpu
from dispatch.placement.assign.choices import Backend
from dispatch.placement.capacity.bounds import ShareBounds
from dispatch.placement.decide import Decision
from dispatch.placement.policies.registry import parse_spec
from dispatch.placement.policies.spec import Needs
from dispatch.progress.status import AlphaMode, Status, WorkerStatus
from dispatch.steering.commands import Commands
from dispatch.steering.kernels import PolicyKernels
from dispatch.training import Training
from infra.base.errors import ConfigError
from infra.base.link_gbit import LinkGbit


class Steering:
    """Applies the desired state to the parts that decide."""

    def __init__(self, job: DispatchJob, pilot: AlphaPilot, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """pilot: adapts alpha to how contended the machine is; used only while it controls alpha.

        is_stopped: returns whether the dispatcher is to stop, in which case no kernels are compiled.
        """
        self._job = job
        self.pilot = pilot
        self._desired = Desired()
        """The desired state that is applied, except for a policy that waits for the next generation."""
        self._is_piloted = False
        """Whether the pilot has been told the current alpha."""
        self.policy_text = ""
        self._built_for = ""
        self.backend = choose_backend(job.dispatch.opt_backend, job.stream.batch, job.dispatch.workers)
        """Where exact assignment runs."""
        self._configured: AlphaMode = job.dispatch.alpha or ("auto" if has_gpu() else "fixed")
        self.kernels = PolicyKernels(job.seed, self.backend, is_stopped, job.rows.chunks)
        self._use(job.dispatch.policy)

    @property
    def mode(self) -> AlphaMode:
        """Who controls the share of exact solving."""
        return mode_of(self._desired, self._configured)

    @property
    def alpha(self) -> float:
        """The share of exact solving that is applied."""
        return alpha_of(self._desired, self._configured, self.needs.alpha)

    def can_decide(self, desired: Desired) -> bool:
        """Whether the kernels of the desired policy are compiled; if not, they are being compiled."""
        return self.kernels.are_compiled(policy_of(desired, self._job.dispatch))

    def needs_generation(self, desired: Desired) -> bool:
        """Whether the desired policy needs another generation."""
        policy = policy_of(desired, self._job.dispatch)
        return policy != self.policy_text and not _alike(parse_spec(policy).needs, self.needs)

    def start_generation(self, desired: Desired) -> None:
        """Applies the whole desired state; must be called before the parts of the generation are created."""
        self._desired = desired
        self._is_piloted = False
        self._use(policy_of(desired, self._job.dispatch))

    def steer(self, commands: Commands, training: Training, intake: Intake) -> None:
        """Applies what operators have set since the last step, and what the dispatcher adapts itself."""
        self._apply(commands.desired, training, intake)
        if (change := self._proposed_change()) is not None and commands.adapt(
            AlphaChanged(
                step=intake.step,
                alpha=change.alpha,
                backend=change.backend,
                reason=change.reason,
                readings=change.readings,
                at_seconds=time(),
            )
        ):
            self._move(change.backend, training)
            self._apply(commands.desired, training, intake)
            facts = {"alpha": change.alpha, "backend": change.backend, "reason": change.reason}
            structlog.get_logger().info("alpha changed", **facts)

    def _apply(self, desired: Desired, training: Training, intake: Intake) -> None:
        """Applies the desired state from the next decision on; does nothing if it has not changed."""
        if desired is self._desired:  # it is frozen and only ever replaced, so identity means that nothing has changed
            return
        self._desired = desired
        self._is_piloted = self._is_piloted and self.mode == "auto"
        policy = policy_of(desired, self._job.dispatch)
        if policy != self.policy_text and not self.needs_generation(desired):
            self._use(policy)
            self._is_piloted = False  # the new policy may have another maximum of alpha
            training.decider.use(self.policy)
        self.apply_desired(training, intake)

    def apply_desired(self, training: Training, intake: Intake) -> None:
        """Passes the applied settings to the parts that decide."""
        training.decider.alpha = self.alpha
        training.decider.compares = self.is_piloting
        deadline = self._desired.deadline
        training.feedback.is_elastic = self.needs.elastic
        training.feedback.has_deadline = self._job.dispatch.deadline if deadline is None else deadline
        training.update_links(self.links(), self.bounds(training.names))
        intake.skip_above(self.skip_above)

    @property
    def skip_above(self) -> int | None:
        """Events that may wait before all but the newest are skipped; None for any number."""
        wanted = self._desired.skip_above
        if not wanted:
            return self._job.stream.skip_above
        return None if wanted == NONE else int(wanted)

    def links(self) -> dict[str, LinkGbit]:
        """Returns the link speeds that operators have set, by worker."""
        found = {name: self._desired.link_of(name) for name in self._desired.links}
        return {name: link for name, link in found.items() if link is not None}

    def bounds(self, names: Sequence[str]) -> ShareBounds:
        """Returns the bounds of these workers' shares; the configured ones if the desired ones cannot hold a batch."""
        configured = self._job.dispatch.share_bounds
        if not self._desired.shares:
            return configured
        try:
            return wanted_bounds(configured, self._desired, names)
        except ConfigError as error:
            structlog.get_logger().warning("share bounds that were set do not fit these workers", reason=str(error))
            return configured

    def describe(self, status: Status, desired: Desired, names: Sequence[str], cursor: int) -> Status:
        """Adds the applied settings to a status, with alpha as for the next step.

        names: names of the members. cursor: end of the journal.
        """
        return msgspec.structs.replace(
            status,
            policy=self.policy_text,
            alpha=alpha_of(desired, self._configured, self.needs.alpha),
            alpha_mode=mode_of(desired, self._configured),
            opt_backend=self.backend,
            alpha_readings=self._readings(),
            alpha_reason=desired.alpha_reason,
            alpha_changed_at=desired.alpha_at or None,
            cursor=cursor,
            version=cursor,
            is_paused=desired.is_paused,
            workers=self._bounded(status.workers, names),
        )

    def _bounded(self, workers: tuple[WorkerStatus, ...], names: Sequence[str]) -> tuple[WorkerStatus, ...]:
        """Adds the share bounds of the workers, if capacities are elastic."""
        if not (self.needs.elastic and names):
            return workers
        bounds_2n = (shares.tolist() for shares in self.bounds(names).of(len(names)))
        bounds = {name: each for name, *each in zip(names, *bounds_2n, strict=True)}
        return tuple(
            msgspec.structs.replace(worker, least_share=bounds[worker.name][0], largest_share=bounds[worker.name][1])
            if worker.name in bounds
            else worker
            for worker in workers
        )

    # ── alpha by contention ───────────────────────────────────────────────────────────────────────────────────────────
    @property
    def is_piloting(self) -> bool:
        """Whether alpha follows contention: the mode is auto, and the policy solves exactly at all."""
        return self.mode == "auto" and self._solves_exactly

    def note(self, decision: Decision, step: StepSeconds) -> None:
        """Passes the cost of a decision to the pilot; step: times of the steps that are trained meanwhile.

        While one worker trains alone there is nothing to solve, and no reason to look for contention.
        """
        if self.is_piloting and decision.sole is None:
            if not self._is_piloted:
                may_move = self._job.dispatch.opt_backend == "auto"
                self.pilot.begin(self.alpha, self.needs.alpha, self.backend, may_move)
                self._is_piloted = True
            self.pilot.note(decision.seconds, decision.cpu_seconds, step, decision.worth)

    def _readings(self) -> dict[str, float]:
        """Returns the pilot's last readings; none unless it controls alpha."""
        seen = self.pilot.last if self._is_piloted else None
        return {} if seen is None else seen.figures()

    def _proposed_change(self) -> AlphaChange | None:
        """Returns the change that the pilot proposes, if it controls alpha."""
        return self.pilot.sample_and_decide(monotonic()) if self._is_piloted else None

    def _move(self, backend: Backend, training: Training) -> None:
        """Moves exact assignment to this backend from the next decision on."""
        if backend != self.backend:
            self.backend = backend
            self._use(self.policy_text)
            training.decider.use(self.policy)

    def _use(self, policy: str) -> None:
        if policy != self.policy_text or self._built_for != self.backend:
            spec = parse_spec(policy)
            self.policy = spec.build(self._job.seed, self.backend)
            self.needs = spec.needs
            self._solves_exactly = spec.solves_exactly
            self.policy_text = policy
            self._built_for = self.backend


def policy_of(desired: Desired, config: DispatchConfig) -> str:
    """Returns the desired policy; that of the settings if nobody has set another."""
    return desired.policy or config.policy


def mode_of(desired: Desired, configured: AlphaMode) -> AlphaMode:
    """Returns who controls the share of exact solving; configured: who does if no operator has changed that."""
    if desired.alpha is not None:
        return "manual"
    return "auto" if desired.is_auto else configured


def alpha_of(desired: Desired, configured: AlphaMode, most: float) -> float:
    """Returns the share of exact solving; most: the policy's own alpha, which is the maximum for everyone."""
    wanted = desired.alpha
    if wanted is None and mode_of(desired, configured) == "auto":
        wanted = desired.auto_alpha
    return most if wanted is None else min(wanted, most)


def _alike(one: Needs, other: Needs) -> bool:
    """Whether two policies need the same setup of the dispatcher; alpha may be changed at any time."""
    return replace(one, alpha=0.0) == replace(other, alpha=0.0)
