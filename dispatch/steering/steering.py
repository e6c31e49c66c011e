"""What is in force: the run's settings and, over them, what people have set since, and what the dispatcher adapts.

Everything takes effect between two decisions. A policy that needs other things of the dispatcher than the one before
(replicas, another synchronisation, elastic capacities) waits for the next generation, which starts at once.
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


class Steering:
    """Applies what is wanted to the parts that decide."""

    def __init__(self, job: DispatchJob, pilot: AlphaPilot, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """pilot: follows how contended the machine is; asked only while alpha is its to change.

        is_stopped: whether the dispatcher is to stop, so that no kernels need be compiled
        """
        self._job = job
        self.pilot = pilot
        self._desired = Desired()
        """what is in force, but for a policy that waits for the next generation"""
        self._is_piloted = False
        """whether the pilot knows where alpha stands"""
        self.policy_text = ""
        self._built_for = ""
        self.backend = choose_backend(job.dispatch.opt_backend, job.stream.batch, job.dispatch.workers)
        """where exact assignment runs"""
        self._configured: AlphaMode = job.dispatch.alpha or ("auto" if has_gpu() else "fixed")
        self.kernels = PolicyKernels(job.seed, self.backend, is_stopped)
        self._use(job.dispatch.policy)

    @property
    def mode(self) -> AlphaMode:
        """Who says how much is solved exactly."""
        return mode_of(self._desired, self._configured)

    @property
    def alpha(self) -> float:
        """Share of exact solving in force."""
        return alpha_of(self._desired, self._configured, self.needs.alpha)

    def can_decide(self, desired: Desired) -> bool:
        """Whether the wanted policy's kernels are compiled; they are meanwhile if not."""
        return self.kernels.are_compiled(policy_of(desired, self._job.dispatch))

    def needs_generation(self, desired: Desired) -> bool:
        """Whether what is wanted cannot be had in this generation."""
        policy = policy_of(desired, self._job.dispatch)
        return policy != self.policy_text and not _alike(parse_spec(policy).needs, self.needs)

    def start_generation(self, desired: Desired) -> None:
        """From now on everything that is wanted is in force; to be called before the generation's own parts are."""
        self._desired = desired
        self._is_piloted = False
        self._use(policy_of(desired, self._job.dispatch))

    def steer(self, commands: Commands, training: Training, intake: Intake) -> None:
        """Puts in force what people have set since the last step, and what the dispatcher adapts by itself."""
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
        """Makes what is wanted hold for the next decision; does nothing if nothing has changed."""
        if desired is self._desired:
            return
        self._desired = desired
        self._is_piloted = self._is_piloted and self.mode == "auto"
        policy = policy_of(desired, self._job.dispatch)
        if policy != self.policy_text and not self.needs_generation(desired):
            self._use(policy)
            self._is_piloted = False  # alpha may rise to another value now
            training.decider.use(self.policy)
        self.apply_desired(training, intake)

    def apply_desired(self, training: Training, intake: Intake) -> None:
        """Tells the parts that decide what is in force."""
        training.decider.alpha = self.alpha
        training.decider.compares = self.is_piloting
        deadline = self._desired.deadline
        training.feedback.is_elastic = self.needs.elastic
        training.feedback.has_deadline = self._job.dispatch.deadline if deadline is None else deadline
        training.update_links(self.links(), self.bounds(training.names))
        intake.skip_above(self.skip_above)

    @property
    def skip_above(self) -> int | None:
        """Events that may wait before the newest are skipped to; None: any number."""
        wanted = self._desired.skip_above
        if not wanted:
            return self._job.stream.skip_above
        return None if wanted == NONE else int(wanted)

    def links(self) -> dict[str, float]:
        """Speeds that people have told, by worker."""
        return self._desired.links

    def bounds(self, names: Sequence[str]) -> ShareBounds:
        """Of the elastic capacities of these workers; those of the settings if the wanted ones hold no batch."""
        configured = self._job.dispatch.share_bounds
        if not self._desired.shares:
            return configured
        try:
            return wanted_bounds(configured, self._desired, names)
        except ConfigError as error:
            structlog.get_logger().warning("share bounds that were set do not fit these workers", reason=str(error))
            return configured

    def describe(self, status: Status, desired: Desired, names: Sequence[str], cursor: int) -> Status:
        """A status with what is in force, alpha as for the next step; names: of members; cursor: end of the journal."""
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
        """With the bounds of their shares, where these are elastic."""
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
        """Whether alpha follows contention: somebody wants it to, and the policy has any use for it."""
        return self.mode == "auto" and self._solves_exactly

    def note(self, decision: Decision, step: StepSeconds) -> None:
        """Takes what a decision took; step: of those that are trained meanwhile."""
        if self.is_piloting:
            if not self._is_piloted:
                may_move = self._job.dispatch.opt_backend == "auto"
                self.pilot.begin(self.alpha, self.needs.alpha, self.backend, may_move)
                self._is_piloted = True
            self.pilot.note(decision.seconds, decision.cpu_seconds, step, decision.worth)

    def _readings(self) -> dict[str, float]:
        """What the pilot saw last, while alpha is its to change."""
        seen = self.pilot.last if self._is_piloted else None
        return {} if seen is None else seen.figures()

    def _proposed_change(self) -> AlphaChange | None:
        """What the pilot wants changed, if alpha is its to change."""
        return self.pilot.sample_and_decide(monotonic()) if self._is_piloted else None

    def _move(self, backend: Backend, training: Training) -> None:
        """Exact assignment runs there from the next decision on."""
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
    """The policy that is to decide: that of the settings if nobody has set another."""
    return desired.policy or config.policy


def mode_of(desired: Desired, configured: AlphaMode) -> AlphaMode:
    """Who says how much is solved exactly; configured: who does if nobody has said anything since."""
    if desired.alpha is not None:
        return "manual"
    return "auto" if desired.is_auto else configured


def alpha_of(desired: Desired, configured: AlphaMode, most: float) -> float:
    """Share of exact solving; most: that of the policy, the ceiling whoever has set it."""
    wanted = desired.alpha
    if wanted is None and mode_of(desired, configured) == "auto":
        wanted = desired.auto_alpha
    return most if wanted is None else min(wanted, most)


def _alike(one: Needs, other: Needs) -> bool:
    """Whether two policies need the same of the dispatcher; alpha may be set at any time."""
    return replace(one, alpha=0.0) == replace(other, alpha=0.0)
