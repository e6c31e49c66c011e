"""Other processes on the GPU. NVML itself is stood in for: what it answers depends on driver, rights and device."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from dispatch.alpha.neighbours import NOT_KNOWN, GpuNeighbours, OtherUse, find_neighbours, own_processes
from infra.base.process import NOWHERE, ProcessPlace

OWN = 7
MINE = ProcessPlace("machine", "pid:[1]", OWN)
ALONE = own_processes(MINE, ())


@dataclass
class ScriptedNvml:
    """Answers as told: bytes by process, and (process, percent) samples or an error code."""

    memory: dict[int, int | None]
    samples: list[tuple[int, int]] = field(default_factory=list)
    utilisation_error: int | None = None
    processes_error: Exception | None = None
    asked_since: list[int] = field(default_factory=list)

    def nvmlDeviceGetComputeRunningProcesses(self, device: Any) -> list[Any]:  # noqa: N802
        if self.processes_error is not None:
            raise self.processes_error
        return [SimpleNamespace(pid=process, usedGpuMemory=used) for process, used in self.memory.items()]

    def nvmlDeviceGetProcessUtilization(self, device: Any, since: int) -> list[Any]:  # noqa: N802
        self.asked_since.append(since)
        if self.utilisation_error is not None:
            raise pynvml.NVMLError(self.utilisation_error)
        made = enumerate(self.samples, start=since + 1)
        return [SimpleNamespace(pid=process, smUtil=percent, timeStamp=at) for at, (process, percent) in made]

    def nvmlDeviceGetMemoryInfo(self, device: Any) -> Any:  # noqa: N802
        return SimpleNamespace(total=1000)


def test_only_other_processes_count() -> None:
    nvml = ScriptedNvml({OWN: 400, 8: 100, 9: 150}, [(OWN, 90), (8, 20), (8, 40), (9, 10)])
    assert GpuNeighbours(nvml, None, MINE).read(ALONE) == OtherUse(utilisation=0.4, memory=0.25)


def test_the_workers_of_the_run_are_not_others() -> None:
    nvml = ScriptedNvml({OWN: 400, 8: 100, 9: 150}, [(OWN, 30), (8, 40), (9, 20)])
    own = own_processes(MINE, [ProcessPlace("machine", "pid:[1]", 8)])
    assert own.workers == 1
    assert GpuNeighbours(nvml, None, MINE).read(own) == OtherUse(utilisation=0.2, memory=0.15)


@pytest.mark.parametrize("place", [ProcessPlace("elsewhere", "pid:[1]", 8), NOWHERE])
def test_a_worker_on_another_machine_is_no_process_of_this_one(place: ProcessPlace) -> None:
    nvml = ScriptedNvml({OWN: 400, 8: 100}, [(8, 40)])
    own = own_processes(MINE, [place])
    assert own.workers == 0
    assert GpuNeighbours(nvml, None, MINE).read(own) == OtherUse(utilisation=0.4, memory=0.1)


def test_nobody_can_be_told_apart_beside_a_worker_that_counts_processes_another_way() -> None:
    nvml = ScriptedNvml({OWN: 400, 8: 100}, [(8, 40)])
    own = own_processes(MINE, [ProcessPlace("machine", "pid:[2]", 8)])
    assert own.workers == 1
    assert GpuNeighbours(nvml, None, MINE).read(own) == NOT_KNOWN


def test_samples_are_asked_for_since_the_last_reading() -> None:
    nvml = ScriptedNvml({OWN: 400}, [(OWN, 90), (OWN, 80)])
    neighbours = GpuNeighbours(nvml, None, MINE)
    neighbours.read(ALONE)
    neighbours.read(ALONE)
    assert nvml.asked_since == [0, 2]


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS])
def test_an_idle_device_has_no_samples(code: int) -> None:
    nvml = ScriptedNvml({OWN: 400, 8: None}, utilisation_error=code)
    assert GpuNeighbours(nvml, None, MINE).read(ALONE) == OtherUse(utilisation=0.0, memory=0.0)


def test_mig_has_no_utilisation_but_memory() -> None:
    nvml = ScriptedNvml({OWN: 400, 8: 300}, utilisation_error=pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert GpuNeighbours(nvml, None, MINE).read(ALONE) == OtherUse(utilisation=None, memory=0.3)


@pytest.mark.parametrize(
    "error",
    [
        pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION),
        pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST),
        pynvml.NVMLLibraryMismatchError(),
    ],
)
def test_without_permission_device_or_a_new_enough_driver_nothing_is_said(error: Exception) -> None:
    assert GpuNeighbours(ScriptedNvml({}, processes_error=error), None, MINE).read(ALONE) == NOT_KNOWN


def test_process_numbers_of_another_namespace_are_not_taken_for_others() -> None:
    nvml = ScriptedNvml({31_007: 400}, [(31_007, 90)])
    assert GpuNeighbours(nvml, None, MINE).read(ALONE) == NOT_KNOWN


def test_a_device_that_nvml_does_not_know_has_no_neighbours() -> None:
    assert find_neighbours("FFFF:FF:1F.0") is None
