"""Kernels of policies, compiled before the policy decides.

With a cold cache a policy's kernels take minutes on a busy machine. Inside the loop workers would hear
nothing meanwhile, and they give a silent dispatcher up.
"""

from concurrent.futures import Future, ThreadPoolExecutor

from dispatch.assign.choices import OptBackend
from dispatch.decide import warm_up


class PolicyKernels:
    """Compiles the kernels of every policy that is asked for once, on a thread of its own."""

    def __init__(self, seed: int, opt_backend: OptBackend) -> None:
        self._seed, self._opt_backend = seed, opt_backend
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kernels")
        self._compiled: dict[str, Future[None]] = {}

    def await_compiled(self, policy: str) -> None:
        """Returns when the policy can decide at once."""
        self._start(policy).result()

    def are_compiled(self, policy: str) -> bool:
        """Whether the policy can decide at once; they are compiled meanwhile if it cannot."""
        compiled = self._start(policy)
        if compiled.done():
            compiled.result()  # raises what went wrong
        return compiled.done()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _start(self, policy: str) -> Future[None]:
        if policy not in self._compiled:
            self._compiled[policy] = self._thread.submit(warm_up, policy, self._seed, self._opt_backend)
        return self._compiled[policy]
