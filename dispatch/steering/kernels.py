"""Kernels of policies, compiled before the policy decides.

With a cold cache a policy's kernels take minutes on a busy machine. Inside the loop workers would hear
nothing meanwhile, and they give a silent dispatcher up.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from dispatch.placement.assign.choices import Backend
from dispatch.placement.decide import warm_up
from infra.base.kernels import compile_ahead


class PolicyKernels:
    """Compiles the kernels of every policy that is asked for once, on a thread of its own."""

    def __init__(self, seed: int, backend: Backend, is_stopped: Callable[[], bool]) -> None:
        """is_stopped: whether the dispatcher is to stop, so that nothing more is compiled"""
        self._seed = seed
        self._backend = backend
        self._is_stopped = is_stopped
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kernels")
        self._compiled: dict[str, Future[bool]] = {}

    def await_compiled(self, policy: str) -> bool:
        """Returns whether the policy can decide at once, which it cannot if the dispatcher is to stop meanwhile."""
        return self._start(policy).result()

    def are_compiled(self, policy: str) -> bool:
        """Whether the policy can decide at once; they are compiled meanwhile if it cannot."""
        compiled = self._start(policy)
        return compiled.done() and compiled.result()  # raises what went wrong

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _start(self, policy: str) -> Future[bool]:
        if policy not in self._compiled:
            decide = partial(warm_up, policy, self._seed, self._backend)
            self._compiled[policy] = self._thread.submit(compile_ahead, decide, ["dispatch"], self._is_stopped)
        return self._compiled[policy]
