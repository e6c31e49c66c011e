"""What programs other than this run do on the GPU that it solves on, by NVML (nvidia-ml-py).

A worker reports where it runs when it joins (infra/base/process.py), so its process is known to be the run's own.

Everything here may be missing: the driver, the right to see processes, figures per process (MIG has none), our own
process in the list (in a container NVML reports the process numbers of the host), or the workers' (they may run in
other containers on this machine). Then the processes cannot be distinguished, and no figures are given; the trial
notices a shared GPU as well (dispatch/alpha/trials.py).
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pynvml

from infra.base.process import ProcessPlace, own_place


@dataclass(frozen=True)
class OwnProcesses:
    """The processes of a run on the machine that decides."""

    pids: frozenset[int]
    workers: int = 0
    """Workers of the run on this machine."""
    are_known: bool = True
    """Whether those are all of them; False if a worker has another numbering of processes."""


def own_processes(mine: ProcessPlace, workers: Iterable[ProcessPlace]) -> OwnProcesses:
    """The processes of the dispatcher and of the workers next to it; workers on other machines do not count."""
    here = [place for place in workers if place.machine and place.machine == mine.machine]
    are_known = all(place.namespace == mine.namespace for place in here)
    return OwnProcesses(frozenset({mine.pid, *(place.pid for place in here)}), len(here), are_known)


@dataclass(frozen=True)
class OtherUse:
    """Use by programs other than this run; None: NVML does not say."""

    utilisation: float | None = None
    """Share of the time since the last reading in which their kernels ran, all of them together, at most 1."""
    memory: float | None = None
    """Share of the device's memory that they hold."""


NOT_KNOWN = OtherUse()
UNUSABLE = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)
"""What pynvml raises: the driver's own errors, and that the driver is too old for it."""


class Nvml(Protocol):
    """The functions of pynvml that are used here; its constants and errors come from the module."""

    def nvmlDeviceGetComputeRunningProcesses(self, device: Any) -> list[Any]: ...  # noqa: N802 (NVML's own name)
    def nvmlDeviceGetProcessUtilization(self, device: Any, since: int) -> list[Any]: ...  # noqa: N802
    def nvmlDeviceGetMemoryInfo(self, device: Any) -> Any: ...  # noqa: N802


class GpuNeighbours:
    """Observes one device."""

    def __init__(self, nvml: Nvml, device: Any, mine: ProcessPlace) -> None:
        """mine: of this process, which uses the device."""
        self._nvml = nvml
        self._device = device
        self._mine = mine
        self._since = 0
        """Time of the newest sample that was read, in microseconds of NVML's clock."""

    def read(self, own: OwnProcesses) -> OtherUse:
        """The use since the last reading."""
        try:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._device)
            if not own.are_known or self._mine.pid not in [process.pid for process in processes]:
                return NOT_KNOWN
            total = self._nvml.nvmlDeviceGetMemoryInfo(self._device).total
        except UNUSABLE:
            return NOT_KNOWN
        # a process whose memory may not be seen has None
        others = [process.usedGpuMemory or 0 for process in processes if process.pid not in own.pids]
        return OtherUse(self._utilisation(own), sum(others) / total)

    def _utilisation(self, own: OwnProcesses) -> float | None:
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._device, self._since)
        except pynvml.NVMLError as error:
            # pynvml raises even the success code if there is no sample
            is_idle = error.value in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND)
            return 0.0 if is_idle else None
        self._since = max([self._since, *(sample.timeStamp for sample in samples)])
        by_process: dict[int, list[int]] = {}
        for sample in samples:
            if sample.pid not in own.pids:
                by_process.setdefault(sample.pid, []).append(sample.smUtil)
        return min(1.0, sum(sum(percents) / len(percents) for percents in by_process.values()) / 100)


def find_neighbours(bus_id: str) -> GpuNeighbours | None:
    """The neighbours on the device at this PCI address; None if NVML cannot be used."""
    with suppress(*UNUSABLE):
        pynvml.nvmlInit()
        return GpuNeighbours(pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(bus_id), own_place())
    return None
