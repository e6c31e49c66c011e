"""Opt on a GPU: the same least total cost as dispatch/placement/assign/solver.py, with the cost matrix built on the
GPU, or on the CPU if rows have different sizes.

Legend: B or k samples, F keys per sample, U distinct rows, n workers, Q words of 64 workers each.

One upload (the batch, or a finished matrix), two kernels for the matrix, three for each level of the solver, one
download of a byte per sample. All of it runs on a separate stream, which neither waits for other work on the device nor
delays it, and through pinned buffers that are kept. The method is that of dispatch/placement/assign/reference/
cuda_transport.py: prices from coarse levels, then chains from over-full workers to workers with room, each moving at
once all samples that are tied on it.

Guarantees: the total cost is the least possible, up to float64 rounding; equal input gives equal output. Among
assignments of equal cost it may pick another one than the CPU's solver.
"""

from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dispatch.placement.arrays import F64, I32, I64, U8
from dispatch.placement.assign.cost import cost_matrix, parts_saved, push_ratios
from dispatch.placement.assign.levels import level_places, level_strides
from dispatch.placement.assign.situation import Situation
from dispatch.placement.assign.solver import LARGEST_COST, check_costs, checked_capacities
from dispatch.placement.errors import BadCost, NoGpu

MOST_WORKERS = 128
"""Most workers: their pairs must fit into a multiprocessor's shared memory."""
ALIGN = 256
"""Alignment of each array within a buffer, in bytes."""
SOURCES = Path(__file__).parent
OPTIONS = ("--std=c++17", "--fmad=false")
"""No fused multiply-add, so that costs are computed as on the CPU."""


class CudaSolver:
    """Solves one problem after the other on one device; callers from several threads take turns."""

    def __init__(self) -> None:
        self._cupy = load_cupy()
        self._stream = self._cupy.cuda.Stream(non_blocking=True)
        self._kernels = dict(compile_kernels(self._cupy, "cost.cu", "pushes", "costs"))
        self._kernels |= compile_kernels(self._cupy, "transport.cu", "place", "seat", "augment")
        self._kernels["augment"].max_dynamic_shared_size_bytes = _shared_bytes(MOST_WORKERS)
        self._upload = Upload(self._cupy)
        self._arena = Arena(self._cupy)
        self._lock = Lock()
        self._begin, self._end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        """Events on the stream: before the upload of the latest problem, and after its last kernel."""

    def solve(self, cost_kn: ArrayLike, capacity_n: ArrayLike) -> I32:
        """The worker of each sample such that no capacity is exceeded and the summed cost is least."""
        cost = np.ascontiguousarray(cost_kn, dtype=np.float64)
        capacity = self._checked(cost.shape, capacity_n)
        check_costs(cost)
        with self._lock, self._stream:
            sent = self._send(capacity, cost.shape, cost=cost)
            return self._solve(sent["cost"], sent, *cost.shape)

    def assign(self, situation: Situation) -> I32:
        """The same for a whole batch, whose cost matrix never leaves the device if all rows are whole."""
        if situation.size_U is not None:
            return self.solve(cost_matrix(situation), situation.capacity_n)
        shape = (situation.samples, situation.workers)
        capacity = self._checked(shape, situation.capacity_n)
        _check_row_costs(situation)
        with self._lock, self._stream:
            sent = self._send(capacity, shape, **_batch_arrays(situation))
            return self._solve(self._build(sent, situation), sent, *shape)

    def cost_matrix(self, situation: Situation) -> F64:
        """The matrix that `assign` solves."""
        if situation.size_U is not None:
            return cost_matrix(situation)
        shape = (situation.samples, situation.workers)
        with self._lock, self._stream:
            sent = self._send(situation.capacity_n, shape, **_batch_arrays(situation))
            built: F64 = self._build(sent, situation).get()
            return built

    def device_seconds(self) -> float:
        """Time from the upload of the latest problem to the end of its last kernel, by the device's own clock.

        A device that is shared with other processes takes longer, whatever the CPU does meanwhile.
        """
        return float(self._cupy.cuda.get_elapsed_time(self._begin, self._end)) / 1000

    def _checked(self, shape: tuple[int, ...], capacity_n: ArrayLike) -> I64:
        capacity = checked_capacities(shape, capacity_n)
        if shape[1] > MOST_WORKERS:
            raise BadCost(
                f"cannot assign samples on the GPU; got {shape[1]} workers; expected at most {MOST_WORKERS}; set "
                f"dispatch.opt_backend to cpu"
            )
        return capacity

    def _send(self, capacity_n: I64, shape: tuple[int, int], **arrays: NDArray[Any]) -> dict[str, Any]:
        """Uploads the problem's arrays and the levels' capacities and zeroed counters in one copy."""
        strides = level_strides(*shape)
        parts = [-(-shape[0] // stride) for stride in strides]
        arrays["places"] = np.array([level_places(capacity_n, part, shape[0]) for part in parts], np.int32)
        arrays["count"] = np.zeros((len(strides), shape[1]), np.int32)
        arrays["price"] = np.zeros(shape[1])
        arrays["rounds"] = np.zeros(1, np.int32)
        self._begin.record(self._stream)
        return self._upload.send(arrays, self._stream)

    def _build(self, sent: dict[str, Any], situation: Situation) -> Any:
        samples, fields = situation.local_BF.shape
        rows, words = situation.holders_UQ.shape
        workers = situation.workers
        pushes_U = self._arena.array("pushes_U", (rows,), np.float64)
        cost_Bn = self._arena.array("cost_Bn", (samples, workers), np.float64)
        where = (sent["state"], sent["holders"])
        self._kernels["pushes"](
            (-(-rows // 256) or 1,),
            (256,),
            (*where, sent["push_cost"], np.float64(situation.value_share), *_int32(rows, words), pushes_U),
        )
        sizes = _int32(samples, fields, workers, words)
        links = (sent["row_cost"], sent["push_ratio"], sent["part_saved"])
        arguments = (sent["local"], *where, pushes_U, *links, *sizes, cost_Bn)
        self._kernels["costs"]((-(-samples * workers // 256) or 1,), (256,), arguments)
        return cost_Bn

    def _solve(self, cost: Any, sent: dict[str, Any], samples: int, workers: int) -> I32:
        """Coarse levels find prices, each starting from those of the one before; the last level has every sample."""
        if samples == 0:
            self._end.record(self._stream)
            self._stream.synchronize()
            return np.empty(0, dtype=np.int32)
        take = self._arena.array
        at = take("at", (samples,), np.uint8)
        first = take("first", (workers,), np.int32)
        seated = take("seated", (samples * (workers + 1),), np.int32)
        seat_of, moved, left = (take(name, (samples,), np.int32) for name in ("seat_of", "moved", "left"))
        least = take("least", (workers, workers), np.float64)
        tied, mover, stale = (take(name, (workers, workers), np.int32) for name in ("tied", "mover", "stale"))
        lanes = min(32, 1 << (workers - 1).bit_length())
        for level, stride in enumerate(level_strides(samples, workers)):
            part = -(-samples // stride)
            problem = (cost, *_int32(part, workers, stride))
            places = sent["places"][level]
            count = sent["count"][level]
            price = sent["price"]
            arguments = (*problem, np.int32(lanes), price, at, count)
            self._kernels["place"]((-(-part * lanes // 256),), (256,), arguments)
            arguments = (*problem, at, count, places, first, seated, seat_of, least, tied, mover)
            self._kernels["seat"]((workers,), (256,), arguments)
            arguments = (*problem, places, count, first, least, tied, price, at, seated, seat_of, mover)
            arguments = (*arguments, moved, left, stale, sent["rounds"])
            self._kernels["augment"]((1,), (1024,), arguments, shared_mem=_shared_bytes(workers))
        self._end.record(self._stream)
        return self._upload.receive(at, self._stream).astype(np.int32)


class Upload:
    """Pinned buffers for both directions, and their counterpart on the device; they grow and are kept."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._up = np.empty(0, np.uint8)
        self._down = np.empty(0, np.uint8)
        self._device: Any = None

    def send(self, arrays: dict[str, NDArray[Any]], stream: Any) -> dict[str, Any]:
        """The arrays on the device, by one asynchronous copy; valid until the next call."""
        starts = np.cumsum([0, *(-(-array.nbytes // ALIGN) * ALIGN for array in arrays.values())]).tolist()
        if starts[-1] > len(self._up):
            self._up = _pinned(self._cupy, 2 * starts[-1])
            self._device = self._cupy.empty(2 * starts[-1], np.uint8)
        sent = {}
        for start, (name, array) in zip(starts, arrays.items(), strict=False):
            np.copyto(self._up[start : start + array.nbytes].view(array.dtype).reshape(array.shape), array)
            sent[name] = self._device[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        self._device[: starts[-1]].set(self._up[: starts[-1]], stream)
        return sent

    def receive(self, array: Any, stream: Any) -> NDArray[Any]:
        """Waits for the stream; the result is valid until the next call."""
        if array.nbytes > len(self._down):
            self._down = _pinned(self._cupy, 2 * array.nbytes)
        received: NDArray[Any] = self._down[: array.nbytes].view(array.dtype).reshape(array.shape)
        array.get(stream=stream, out=received, blocking=False)
        stream.synchronize()
        return received


class Arena:
    """Device arrays by name, created once and reused while they are large enough."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._kept: dict[str, Any] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: type) -> Any:
        size = int(np.prod(shape))
        if name not in self._kept or self._kept[name].size < size:
            self._kept[name] = self._cupy.empty(2 * size, dtype)
        return self._kept[name][:size].reshape(shape)


def load_cupy() -> Any:
    """cupy, if it is installed and finds a device; raises NoGpu otherwise."""
    try:
        import cupy

        devices = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # the library's edge: a missing driver shows in many ways
        raise NoGpu(
            f"GPU solver cannot run here; {type(error).__name__}: {error}; expected cupy and a CUDA device; install "
            f"the extra 'gpu' on a machine with a GPU, or set dispatch.opt_backend to cpu"
        ) from error
    if devices == 0:
        raise NoGpu(
            "GPU solver cannot run here; no CUDA device is visible; expected at least one; set dispatch.opt_backend to "
            "cpu"
        )
    return cupy


@cache
def compile_kernels(cupy: Any, file: str, *names: str) -> dict[str, Any]:
    """The kernels of one source file, compiled once per process (cupy keeps the binary for the next one)."""
    module = cupy.RawModule(code=(SOURCES / file).read_text(), options=OPTIONS)
    return {name: module.get_function(name) for name in names}


def _shared_bytes(workers: int) -> int:
    """Bytes of least, price, distance; tied, room, idle, count, first, before, chain, start."""
    return 8 * (workers * (workers + 1) + 2 * workers) + 4 * (workers * workers + 5 * workers + 2 * (workers + 1))


def _check_row_costs(situation: Situation) -> None:
    """Sums of at most F·n finite row costs must stay usable, as check_costs requires of a finished matrix."""
    bound = LARGEST_COST / max(1, situation.local_BF.shape[1] * situation.workers)
    for cost_n in (situation.row_cost_n, situation.push_cost_n):
        if not (np.abs(cost_n) <= bound).all():
            raise BadCost(
                f"cannot assign samples; row costs are {cost_n.tolist()}; expected finite numbers of at most "
                f"{bound:g}; check the link costs"
            )


def _batch_arrays(situation: Situation) -> dict[str, NDArray[Any]]:
    return {
        "local": situation.local_BF,
        "state": situation.state_U,
        "holders": situation.holders_UQ,
        "row_cost": situation.row_cost_n,
        "push_cost": situation.push_cost_n,
        "push_ratio": push_ratios(situation),
        "part_saved": parts_saved(situation),
    }


def _pinned(cupy: Any, size: int) -> U8:
    memory = cupy.cuda.alloc_pinned_memory(size)
    return np.frombuffer(memory, np.uint8, size)


def _int32(*numbers: int) -> tuple[np.int32, ...]:
    return tuple(np.int32(number) for number in numbers)
