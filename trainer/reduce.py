"""The ring: the dense process group of one generation sums gradients over all workers, and distributes rank 0's
weights.

It consists of torch.distributed's own parts (Gloo, NCCL) held as objects and not as global state: a process can leave
one group and enter the next, and tests can run several workers in one process. The workers of a generation exchange
their addresses through the dispatcher, over their existing connections, which are encrypted if keys are in use; keys of
values contain run and generation, so groups never mix.

Neither Gloo (as torch's wheels are built, without TLS) nor NCCL encrypts or authenticates connections. If keys are in
use, a group of several workers therefore needs trainer.unencrypted_reduce. Addresses are never looked up from the
machine's host name: each worker listens on the interface that faces the others. All ranks get the same bits, and the
same bits every time: both transports sum each element once, in a fixed order.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from dispatch.dense import Reduce
from dispatch.protocol import unencrypted
from infra.base.errors import ConfigError
from trainer.errors import PeersLost

dist: Any = torch.distributed  # its type stubs lack most of its contents

# torch's flight recorder notes every collective of the process, with its Python stack, for a dump that nobody here asks
# for. torch 2.10 to at least 2.11 fills its table of groups without a lock: when two groups of one process begin at the
# same moment, as they do where several workers share a process, the heap is damaged. torch reads this once, at the
# first collective.
os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "0")

Transport = Literal["auto", "gloo", "nccl"]
TRANSPORTS: dict[Reduce, Transport] = {"auto": "auto", "hub": "auto", "ring": "auto", "gloo": "gloo", "nccl": "nccl"}
"""Transport of a ring, if there is one, by the setting."""


class Board(Protocol):
    """A board through which the workers of a generation exchange posts. A post reaches every other worker once."""

    def post(self, key: str, value: bytes) -> None:
        """Posts something to all others."""

    def next_post(self, timeout_seconds: float) -> tuple[str, bytes] | None:
        """Waits for a post of another worker; None if none came in time."""


class BoardStore(dist.Store):  # type: ignore[misc]  # torch's own classes are untyped here
    """The part of torch's store that process groups use, on top of a board: it opens no listening socket.

    Only the thread that created it posts and waits for posts. torch's background threads (NCCL has some) see what has
    arrived so far, and values that they set stay local.
    """

    def __init__(self, board: Board, names: Sequence[str], timeout: timedelta) -> None:
        super().__init__()
        self._board = board
        self._names = names
        self._limit = timeout
        self._thread = threading.get_ident()
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes | str) -> None:
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)
        if threading.get_ident() == self._thread:
            self._board.post(key, self._values[key])

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._values[key]

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        limit = (timeout or self._limit).total_seconds()
        deadline = time.monotonic() + limit
        while not self.check(keys):
            left = deadline - time.monotonic() if threading.get_ident() == self._thread else 0.0
            post = self._board.next_post(left) if left > 0 else None
            if post is None:
                raise PeersLost(self._missing([key for key in keys if key not in self._values], limit))
            self._values[post[0]] = post[1]

    def _missing(self, keys: Sequence[str], limit: float) -> str:
        """Names the workers whose posts are missing: keys end in the number of the worker that posts them."""
        numbers = sorted({int(end) for key in keys if (end := key.rpartition("/")[2]).isdecimal()})
        whose = [self._names[number] if number < len(self._names) else str(number) for number in numbers]
        return (
            f"worker {', '.join(whose) or 'unknown'} posted no {', '.join(keys)} within {limit:g} s; expected every "
            "worker of the generation to take part; see whether it runs"
        )


@dataclass(frozen=True)
class Rendezvous:
    """How a worker meets the others of its generation."""

    board: Board
    host: str
    """Address of this machine that faces the others."""
    timeout: timedelta
    may_sum: bool = True
    """Whether it may take part in sums at all: keys are not in use, or the settings allow unencrypted sums."""


class DenseGroup(Protocol):
    """What a step needs from the other workers."""

    def start_sum(self, gradients: Tensor) -> Callable[[], None]:
        """Starts summing the gradients of all workers, in place; call the result to wait for the end."""

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrites the tensors with rank 0's."""

    def close(self) -> None:
        """Leaves the group."""


class AloneGroup:
    """A generation of one worker: nothing to sum or to receive."""

    def start_sum(self, gradients: Tensor) -> Callable[[], None]:
        return _nothing

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        return None

    def close(self) -> None:
        return None


class PeerGroup:
    """A generation of several workers, over Gloo or NCCL. Gloo gets CUDA tensors through the host's memory."""

    def __init__(self, backend: Any, store: BoardStore, on_host: bool) -> None:
        """store: the backend's store, kept here because the backend does not keep a Python object alive."""
        self._backend = backend
        self._store: BoardStore | None = store
        self._on_host = on_host

    def start_sum(self, gradients: Tensor) -> Callable[[], None]:
        staged = gradients.cpu() if self._on_host else gradients
        try:
            work = self._backend.allreduce([staged])
        except RuntimeError as error:
            raise _lost("cannot start the all-reduce of dense gradients", error) from error

        def finish() -> None:
            _wait(work, "the all-reduce of dense gradients broke off")
            if staged is not gradients:
                gradients.copy_(staged)

        return finish

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            staged = (tensor.cpu() if self._on_host else tensor).reshape(-1)
            _wait(self._backend.broadcast([staged], _from_rank_0()), "the broadcast of rank 0's weights broke off")
            tensor.copy_(staged.view_as(tensor))

    def close(self) -> None:
        """Ends and drops the backend here: its threads must not be left to the garbage collector."""
        if self._backend is not None:
            with suppress(RuntimeError):
                self._backend.shutdown()
            self._backend = self._store = None


def form_group(
    rendezvous: Rendezvous, name: str, rank: int, names: Sequence[str], device: torch.device, transport: Transport
) -> DenseGroup:
    """Meets the other workers; names: of all workers by rank; ``name``: unique to this group."""
    size = len(names)
    if size == 1:
        return AloneGroup()
    if not rendezvous.may_sum:
        raise unencrypted(size)
    store = BoardStore(rendezvous.board, names, rendezvous.timeout)
    shared = dist.PrefixStore(name, store)
    try:
        if transport == "auto":
            transport = _choose(shared, rank, size, device)
        if transport == "nccl":
            return PeerGroup(_nccl(shared, rank, size, rendezvous.timeout), store, on_host=False)
        return PeerGroup(_gloo(shared, rank, size, rendezvous), store, on_host=device.type == "cuda")
    except RuntimeError as error:
        raise _lost(f"worker {names[rank]} cannot form the dense group {name} of {size}", error) from error


def address_facing(host: str) -> str:
    """This machine's address on the route to a host; sends nothing, and looks up no name if given an IP address."""
    family = _family(host)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError as error:
            raise ConfigError(
                f"no way to {host!r}: {error}; expected a host this machine can reach; "
                "correct the dispatcher's endpoint"
            ) from error
        return str(probe.getsockname()[0])


def nccl_device(device: torch.device) -> str:
    """The name of the GPU that NCCL can use, the same in every process that uses it; empty if there is none."""
    is_usable = device.type == "cuda" and dist.is_nccl_available()
    return str(torch.cuda.get_device_properties(device).uuid) if is_usable else ""


def _gloo(shared: Any, rank: int, size: int, rendezvous: Rendezvous) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=rendezvous.host)]
    options._timeout = rendezvous.timeout
    options._threads = 2
    return dist.ProcessGroupGloo(shared, rank, size, options)


def _nccl(shared: Any, rank: int, size: int, timeout: timedelta) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(shared, rank, size, options)


def _choose(shared: Any, rank: int, size: int, device: torch.device) -> Transport:
    """NCCL if every worker has a GPU of its own (NCCL refuses to share one), otherwise Gloo; all ranks choose alike."""
    shared.set(f"device/{rank}", nccl_device(device))
    devices = [shared.get(f"device/{other}").decode() for other in range(size)]
    return "nccl" if "" not in devices and len(set(devices)) == size else "gloo"


def _from_rank_0() -> Any:
    options = dist.BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    return options


def _wait(work: Any, failed: str) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise _lost(failed, error) from error


def _lost(failed: str, error: Exception) -> PeersLost:
    reason = str(error).splitlines()[0]
    return PeersLost(f"{failed}: {reason}; expected every worker of the generation to take part; see which one ended")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _nothing() -> None:
    return None
