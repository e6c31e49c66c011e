"""Compiles the kernels of a policy, and those of every step, before it decides.

With a cold cache this takes minutes on a busy machine. If it happened inside the loop, workers would hear nothing
meanwhile and give up on a silent dispatcher.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from dispatch.placement.assign.choices import Backend
from dispatch.placement.decide import warm_up
from dispatch.progress.warm_up import warm_up_quality
from infra.base.kernels import compile_ahead


class PolicyKernels:
    """Compiles the kernels of every requested policy once, on a separate thread."""

    def __init__(self, seed: int, backend: Backend, is_stopped: Callable[[], bool], chunks: int = 0) -> None:
        """is_stopped: returns whether the dispatcher is to stop, in which case nothing more is compiled.

        chunks: of a row, as in PruneTerms.
        """
        self._seed = seed
        self._backend = backend
        self._is_stopped = is_stopped
        self._chunks = chunks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kernels")
        self._compiled: dict[str, Future[bool]] = {}

    def await_compiled(self, policy: str) -> bool:
        """Waits until the policy's kernels are compiled; returns False if the dispatcher is to stop before that."""
        return self._start(policy).result()

    def are_compiled(self, policy: str) -> bool:
        """Whether the policy can decide now; if it cannot, its kernels are being compiled."""
        compiled = self._start(policy)
        return compiled.done() and compiled.result()  # raises the error if compilation failed

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _start(self, policy: str) -> Future[bool]:
        if policy not in self._compiled:
            self._compiled[policy] = self._thread.submit(
                compile_ahead, partial(self._warm_up, policy), ["dispatch"], self._is_stopped
            )
        return self._compiled[policy]

    def _warm_up(self, policy: str) -> None:
        warm_up(policy, self._seed, self._backend, self._chunks)
        warm_up_quality()
