"""A policy of another package, by the name of an entry point or as ``module:Name``, with parameters as ours have.

    class Nearest:
        def __init__(self, parameters: Sequence[str], seed: int) -> None: ...
        def assign(self, situation: Situation) -> np.ndarray: ...  # a worker for each sample

The result of training does not depend on it, so it may answer whatever it likes, within the capacities. Every answer is
checked. Before a run starts it is tried with small situations: it must give equal answers to equal situations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dispatch.placement.assign.choices import Backend
from dispatch.placement.assign.situation import Assignment, Policy, Situation, check_capacities
from dispatch.placement.policies.spec import ELASTIC, Needs, Spec, split_last
from infra.base.errors import ConfigError
from infra.base.plugins import POLICIES, describe_failure, find_plugin, find_written, load_plugin

KIND = "policy"
TRIED = ((4, 4), (6, 2), (0, 6), (2, 2, 2))
"""Capacities of the situations of a trial."""
TRIED_SAMPLES, TRIED_FIELDS, TRIED_ROWS = 6, 3, 5


@dataclass(frozen=True)
class PluggedSpec(Spec):
    """A policy of another package with its parameters."""

    name: str
    """As it was written: an entry point, or ``module:Name``."""
    parameters: tuple[str, ...]
    elastic: bool

    def __str__(self) -> str:
        return ":".join([self.name, *self.parameters, *[ELASTIC] * self.elastic])

    @property
    def needs(self) -> Needs:
        return Needs(elastic=self.elastic)

    @property
    def is_plugged(self) -> bool:
        return True

    def try_out(self) -> None:
        """Raises ConfigError if the policy cannot be built, or answers wrongly."""
        first, again = self._built(0), self._built(0)
        for step, capacities in enumerate(TRIED):
            situation = _tried_situation(step, capacities)
            answer, other = (policy.assign(situation).worker_B for policy in (first, again))
            if not np.array_equal(answer, other):
                raise ConfigError(
                    f"policy {self.name!r} answers an equal situation with {answer.tolist()} and then with "
                    f"{other.tolist()}; expected answers that depend on parameters, seed and situations alone; "
                    "draw random numbers from numpy.random.default_rng([seed, situation.step])"
                )

    def build(self, seed: int, backend: Backend) -> Policy:
        self.try_out()
        return self._built(seed)

    def _built(self, seed: int) -> "PluggedPolicy":
        found = load_plugin(KIND, find_plugin(KIND, POLICIES, self.name))
        if not (isinstance(found, type) and callable(getattr(found, "assign", None))):
            what = f"class {found.__name__} without it" if isinstance(found, type) else type(found).__name__
            raise ConfigError(
                f"policy {self.name!r} is no policy: it is a {what}; expected a class with assign(self, situation); "
                "correct dispatch.policy, or the class"
            )
        try:
            return PluggedPolicy(self.name, found(self.parameters, seed))
        except Exception as error:  # whatever the class does
            raise ConfigError(
                f"policy {str(self)!r} cannot be built: {describe_failure(error)}; expected __init__(self, parameters, "
                f"seed) that works with {self.parameters} and a number; correct dispatch.policy, or the class"
            ) from error


class PluggedPolicy:
    """Checks what an object of another package answers."""

    def __init__(self, name: str, policy: Any) -> None:
        self._name = name
        self._policy = policy

    def assign(self, situation: Situation) -> Assignment:
        """Raises ConfigError for an answer that is none: the run ends, since a restart would not help."""
        check_capacities(situation)
        try:
            answer = np.asarray(self._policy.assign(situation))
        except Exception as error:  # whatever the object does
            raise ConfigError(
                f"policy {self._name!r} cannot decide step {situation.step}: {describe_failure(error)}; expected "
                f"assign(self, situation) that works with {situation.samples} samples, {situation.local_BF.shape[1]} "
                f"keys a sample and {situation.workers} workers; correct it, or choose another dispatch.policy"
            ) from error
        if (wrong := _wrong_with(answer, situation)) is not None:
            raise ConfigError(
                f"policy {self._name!r} gives {wrong} in step {situation.step}; expected {situation.samples} numbers "
                f"of workers below {situation.workers}, none more often than its capacity "
                f"{situation.capacity_n.tolist()}; correct it, or choose another dispatch.policy"
            )
        return Assignment(answer.astype(np.int32))


def _wrong_with(answer: Any, situation: Situation) -> str | None:
    """What is wrong with an answer; None: nothing."""
    if answer.dtype.kind not in "iu" or answer.shape != (situation.samples,):
        return f"{answer.dtype} of shape {answer.shape}"
    if answer.min() < 0 or answer.max() >= situation.workers:
        return f"a worker {answer.min() if answer.min() < 0 else answer.max()}"
    counts = np.bincount(answer, minlength=situation.workers)
    return f"{counts.tolist()} samples" if (counts > situation.capacity_n).any() else None


def parse_plugged(name: str, parameters: Sequence[str]) -> PluggedSpec | None:
    """The policy of an installed package, or of a module that Python finds; None if there is none. Loads no code."""
    found = find_written(POLICIES, name, parameters)
    if found is None:
        return None
    written, is_elastic = split_last(found.parameters, ELASTIC)
    return PluggedSpec(found.name, tuple(written), is_elastic)


def _tried_situation(step: int, capacities: Sequence[int]) -> Situation:
    """Some rows that are held by one worker, some by two, some by nobody; arrays that cannot be written."""
    draw = np.random.default_rng(step)
    workers = len(capacities)
    situation = Situation(
        step=step,
        local_BF=draw.integers(0, TRIED_ROWS, (TRIED_SAMPLES, TRIED_FIELDS)).astype(np.int32),
        state_U=np.zeros(TRIED_ROWS, np.uint8),
        holders_UQ=draw.integers(0, 1 << workers, (TRIED_ROWS, 1)).astype(np.uint64),
        row_cost_n=1.0 + np.arange(workers, dtype=np.float64),
        capacity_n=np.array(capacities, np.int64),
    )
    for value in vars(situation).values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    return situation
