"""What the dispatcher knows of the model and of its progress, beside the journal.

All of it follows from a cut and the steps on record after it, so a recovery throws it away and makes it anew.
"""

import numpy as np

from dispatch.assign.situation import Policy
from dispatch.capacity.participation import rows_of_dense
from dispatch.cuts.state import DispatcherState, Trained
from dispatch.decide import Decider
from dispatch.dense import NO_MOVES, DenseTurns
from dispatch.job import DispatchJob
from dispatch.journal.terms import GenerationTerms
from dispatch.policies.spec import Needs
from dispatch.progress.accounts import Accounts
from dispatch.progress.feedback import Feedback, WorkerLink
from dispatch.progress.underway import RoundsUnderway
from dispatch.roster import Member
from dispatch.rows.directory import Directory
from dispatch.rows.index import Index
from ps.protocol import FLUSH


class Training:
    """From one cut on."""

    def __init__(
        self, job: DispatchJob, needs: Needs, state: DispatcherState | None = None, index: Index | None = None
    ) -> None:
        """state, index: of a cut; None: of the empty model."""
        self._job = job
        self.index = index or Index()
        self.accounts = Accounts(job.run, job.dispatch.policy, job.mark_at)
        self.feedback = Feedback(job.dispatch, needs.elastic, job.row_bytes)
        self.underway = RoundsUnderway()
        self.dense, self.dense_moves = DenseTurns(are_on_shards=state is not None), NO_MOVES
        """where the dense weights are, and what the step that is announced moves of them"""
        self._decider: Decider | None = None
        self._directory: Directory | None = None
        self._members: tuple[Member, ...] = ()
        """of the generation that the directory was made for"""
        self._flushed = (0, 0)
        """the step that was flushed last, and how often"""
        if state is not None:
            self._load(state)

    def _load(self, state: DispatcherState) -> None:
        """The counterpart of ``trained`` and, for decisions, of what ``Intake.decided`` is given."""
        self.accounts.load(state.trained.accounts)
        self.feedback.load(state.trained.links)
        if state.decided.decisions is not None:
            self.accounts.decisions.load(state.decided.decisions)

    def trained(self) -> Trained:
        """What a cut says about training, when its flush is complete."""
        return Trained(accounts=self.accounts.save(), links=self.feedback.save())

    @property
    def decider(self) -> Decider:
        assert self._decider is not None, "no generation has started"
        return self._decider

    def start_generation(self, terms: GenerationTerms, members: tuple[Member, ...], policy: Policy) -> list[bool]:
        """Every row is clean; returns whether each member keeps its cache, as those who stay do. Others start empty."""
        directory = Directory(
            np.full(terms.workers, terms.cache_rows, np.int64),
            self._job.dispatch.eviction,
            self._job.shards,
            terms.needs.synchronisation,
            terms.replicas,
            self._job.write_behind,
        )
        keeps = [False] * terms.workers
        if self._directory is not None:
            before = {member: number for number, member in enumerate(self._members)}
            keeps = directory.continue_from(self._directory, [before.get(member) for member in members])
        self._directory, self._members = directory, members
        links = [WorkerLink(member.name, member.link_gbit) for member in members]
        costs_n = self.feedback.start_generation(links)
        self.accounts.set_parked(())
        # in a ring a worker moves as much without samples, and one that is alone moves nothing
        dense_bytes = self._job.dense.bytes if terms.uses_hub and terms.workers > 1 else 0
        dense = rows_of_dense(dense_bytes, self._job.row_bytes, self._job.dense.state_copies)
        known = self.index, directory, policy, terms.needs, costs_n, self._job.dispatch.share_bounds
        self._decider = Decider(*known, self._job.rows.shape().value_share, dense)
        return keeps

    def flush_phase(self, step: int) -> int:
        """The phase of the next flush after a step: no two at one step are the same round."""
        times = self._flushed[1] + 1 if self._flushed[0] == step else 0
        self._flushed = step, times
        return FLUSH + times
