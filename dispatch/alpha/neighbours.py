"""What other processes do on the GPU that this one solves on, by NVML (nvidia-ml-py).

Everything here may be missing: the driver, the right to see processes, figures per process (MIG has none), or our own
process in the list (in a container NVML tells the process numbers of the host, and nobody can be told apart). Then
nothing is said; that a GPU is shared is felt by the trial, too (dispatch/alpha/trials.py).
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pynvml


@dataclass(frozen=True)
class OtherUse:
    """Of processes other than this one; None: NVML does not say."""

    utilisation: float | None = None
    """share of the time since the last reading in which their kernels ran; of all of them together, at most 1"""
    memory: float | None = None
    """share of the device's memory that they hold"""


NOT_KNOWN = OtherUse()
UNUSABLE = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)
"""what pynvml raises: the driver's own errors, and that the driver is too old for it"""


class Nvml(Protocol):
    """The functions of pynvml that are used here; its constants and errors are taken from the module."""

    def nvmlDeviceGetComputeRunningProcesses(self, device: Any) -> list[Any]: ...  # noqa: N802 (NVML's own name)
    def nvmlDeviceGetProcessUtilization(self, device: Any, since: int) -> list[Any]: ...  # noqa: N802
    def nvmlDeviceGetMemoryInfo(self, device: Any) -> Any: ...  # noqa: N802


class GpuNeighbours:
    """Looks at one device."""

    def __init__(self, nvml: Nvml, device: Any, process: int | None = None) -> None:
        self._nvml = nvml
        self._device = device
        self._process = os.getpid() if process is None else process
        self._since = 0
        """microseconds, by NVML's clock, of the newest sample that was read"""

    def read(self) -> OtherUse:
        try:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._device)
            if self._process not in [process.pid for process in processes]:
                return NOT_KNOWN
            total = self._nvml.nvmlDeviceGetMemoryInfo(self._device).total
        except UNUSABLE:
            return NOT_KNOWN
        # a process whose memory may not be seen has None
        others = [process.usedGpuMemory or 0 for process in processes if process.pid != self._process]
        return OtherUse(self._utilisation(), sum(others) / total)

    def _utilisation(self) -> float | None:
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._device, self._since)
        except pynvml.NVMLError as error:
            # pynvml raises the code of success, too, where there is no sample
            is_idle = error.value in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND)
            return 0.0 if is_idle else None
        self._since = max([self._since, *(sample.timeStamp for sample in samples)])
        by_process: dict[int, list[int]] = {}
        for sample in samples:
            if sample.pid != self._process:
                by_process.setdefault(sample.pid, []).append(sample.smUtil)
        return min(1.0, sum(sum(percents) / len(percents) for percents in by_process.values()) / 100)


def find_neighbours(bus_id: str) -> GpuNeighbours | None:
    """Of the device at this PCI address; None where NVML cannot be used."""
    with suppress(*UNUSABLE):
        pynvml.nvmlInit()
        return GpuNeighbours(pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(bus_id))
    return None
