"""The dense process group of one generation: sums gradients over all workers, and hands out rank 0's weights.

It is made of torch.distributed's own parts (TCP store, Gloo, NCCL) held as objects and not as global state: a process
can leave one group and enter the next, and several workers can live in one process in tests. Every worker opens a store
when it joins, and the dispatcher names rank 0's to all; keys carry run and generation, so groups never mix.

Addresses are never looked up from the machine's host name: each worker listens on the interface that faces the others.
All ranks get the same bits, and the same bits every time: both transports sum each element once, in a fixed order.
"""

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from infra.errors import ConfigError
from trainer.errors import PeersLost

dist: Any = torch.distributed  # its type stubs leave out most of what it has

# torch's flight recorder notes every collective of the process, with its Python stack, for a dump that nobody here asks
# for. torch 2.10 to at least 2.11 fills its table of groups without a lock: when two groups of one process begin at the
# same moment, as they do where several workers share a process, the heap is damaged. torch reads this once, at the
# first collective.
os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "0")

Transport = Literal["auto", "gloo", "nccl"]


class Rendezvous:
    """The TCP store that a worker opens for the others of its generation to meet at, at ``address``."""

    def __init__(self, host: str, timeout_seconds: float) -> None:
        self.host = host
        self.timeout = timedelta(seconds=timeout_seconds)
        with socket.create_server((host, 0), family=_family(host), backlog=1024) as listener:
            port = listener.getsockname()[1]
            self._store = dist.TCPStore(
                host,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=self.timeout,
                master_listen_fd=listener.detach(),
            )
        self.address = f"{host}:{port}"

    def meet(self, address: str) -> Any:
        """The store at that address: this worker's own, or a connection to rank 0's."""
        if address == self.address:
            return self._store
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal()):
            raise ConfigError(
                f"cannot meet the other workers at {address!r}; expected HOST:PORT of rank 0's store; "
                "run one version of Freshet in all processes"
            )
        try:
            return dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=self.timeout)
        except RuntimeError as error:
            raise _lost(f"cannot reach rank 0's store at {address}", error) from error

    def close(self) -> None:
        """Drops the store, which closes it once no process group uses it: call it after the group's own close."""
        self._store = None


class DenseGroup(Protocol):
    """What a step needs of the other workers."""

    def start_sum(self, gradients: Tensor) -> Callable[[], None]:
        """Starts adding up the gradients of all workers, in place; call the result to wait for the end."""

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

    def __init__(self, backend: Any, on_host: bool) -> None:
        self._backend = backend
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
        """Ends and drops the backend here: its threads must not be left for the garbage collector to end."""
        if self._backend is not None:
            with suppress(RuntimeError):
                self._backend.shutdown()
            self._backend = None


def form_group(
    rendezvous: Rendezvous, address: str, name: str, rank: int, size: int, device: torch.device, transport: Transport
) -> DenseGroup:
    """Meets the other ``size - 1`` workers at rank 0's store under a name no other group has."""
    if size == 1:
        return AloneGroup()
    shared = dist.PrefixStore(name, rendezvous.meet(address))
    try:
        if transport == "auto":
            transport = _choose(shared, rank, size, device)
        if transport == "nccl":
            return PeerGroup(_nccl(shared, rank, size, rendezvous.timeout), on_host=False)
        return PeerGroup(_gloo(shared, rank, size, rendezvous), on_host=device.type == "cuda")
    except RuntimeError as error:
        raise _lost(f"worker {rank} of {size} cannot form the dense group {name} at {address}", error) from error


def address_facing(host: str) -> str:
    """This machine's address on its way to a host; sends nothing, and looks up no name if given an IP address."""
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
    """NCCL when every worker has a GPU of its own (it refuses to share one), else Gloo; all ranks choose alike."""
    own = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else f"cpu {rank}"
    shared.set(f"device/{rank}", own)
    devices = [shared.get(f"device/{other}").decode() for other in range(size)]
    apart = len(set(devices)) == size and not any(name.startswith("cpu") for name in devices)
    return "nccl" if apart and dist.is_nccl_available() else "gloo"


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
