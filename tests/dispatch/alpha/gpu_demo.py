"""Alpha on a GPU that another process uses for a while, for a person to look at. Takes a little over three minutes.

    python3 -m tests.dispatch.alpha.gpu_demo OUT.json OUT.png

Decides made-up batches on the GPU with a pilot, twice for 95 seconds; from second 10 to 65 another process keeps it
busy. First the CPU is free, and exact assignment moves there and back. Then this process and the other one share one
core, so that the CPU is contended as well, and alpha falls and rises instead.
"""

import os
import sys
from math import nan
from pathlib import Path

import msgspec
from matplotlib.figure import Figure

from dispatch.alpha.pilot import AlphaPilot
from dispatch.assign.backend import choose_opt
from tests.dispatch.alpha.loop import Load, Looped, loaded

SECONDS, LOAD_FROM, LOAD_TO = 95.0, 10.0, 65.0
BUSY_SECONDS = 0.04
BURN = """
import cupy
code = "extern \\"C\\" __global__ void burn(float* a) {" \\
    "float x = a[threadIdx.x]; for (int k = 0; k < 50000; ++k) x = x * 1.000001f + 1e-7f; a[threadIdx.x] = x; }"
burn, numbers, stream = cupy.RawKernel(code, "burn"), cupy.zeros(1024, cupy.float32), cupy.cuda.get_current_stream()
while True:
    burn((8192,), (1024,), (numbers,))
    while not stream.done:
        pass
"""
"""keeps all of a GPU busy, and a core while it waits; needs nothing but the compiler that the solver needs"""
SHARES = {
    "cpu_contention": "CPU: share of their time that decisions lose",
    "gpu_others": "GPU: share of the time others run, by NVML",
    "saved_share": "share of the cost that exact solving saves",
}


class Point(msgspec.Struct, frozen=True):
    """What held at one look."""

    at: float
    """seconds"""
    has_load: bool
    alpha: float
    backend: str
    readings: dict[str, float]
    reason: str
    """of a change at this look, else empty"""


def run(cpu_is_shared: bool) -> list[Point]:
    if cpu_is_shared:  # the other process inherits it
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pilot = AlphaPilot()
    looped = Looped("joint", "cuda", pilot, BUSY_SECONDS)
    points: list[Point] = []
    seen = None
    for at, has_load, change in loaded(looped, Load(BURN), SECONDS, LOAD_FROM, LOAD_TO):
        if pilot.last is None or pilot.last is seen:
            continue
        seen = pilot.last
        figures = seen.figures() | {"cpu_contention": seen.cpu_contention}
        reason = change.reason if change is not None else ""
        points.append(Point(at, has_load, looped.alpha, looped.backend, figures, reason))
        if reason:
            sys.stderr.write(f"{at:5.1f} s: {reason}\n")
    return points


def draw(runs: dict[str, list[Point]], to: Path) -> None:
    """Alpha and backend, the GPU's contention, and shares of the time, one above the other; a column for each run."""
    figure = Figure(figsize=(13, 8), layout="constrained")
    panels = figure.subplots(3, len(runs), sharex=True, squeeze=False)
    for (title, points), (acts, times, shares) in zip(runs.items(), panels.T, strict=True):
        at = [point.at for point in points]
        acts.set_title(title)
        acts.step(at, [point.alpha for point in points], where="post", label="alpha")
        on_gpu = [float(point.backend == "cuda") for point in points]
        acts.step(at, on_gpu, where="post", linestyle=":", label="exact assignment: 1 on the GPU, 0 on the CPU")
        times.semilogy(
            at, [point.readings["gpu_slowdown"] for point in points], label="GPU's trial against its best, times"
        )
        for name, label in SHARES.items():
            shares.plot(at, [point.readings.get(name, nan) for point in points], label=label)
        for panel in (acts, shares):
            panel.set_ylim(-0.05, 1.5)
        shares.set_xlabel("seconds")
        for panel in (acts, times, shares):
            panel.axvspan(LOAD_FROM, LOAD_TO, alpha=0.12, color="tab:red", label="another process on the GPU")
            panel.legend(loc="upper right", fontsize="small")
    figure.savefig(to, dpi=110)


def main() -> None:
    json_path, png_path = (Path(name) for name in sys.argv[1:3])
    if choose_opt("cuda").name != "cuda":
        sys.exit("cannot show a GPU under load; no GPU was found; run it on a machine with cupy and a CUDA device")
    runs = {"CPU free": run(cpu_is_shared=False), "CPU shared with the other process": run(cpu_is_shared=True)}
    json_path.write_bytes(msgspec.json.format(msgspec.json.encode(runs), indent=1))
    draw(runs, png_path)


if __name__ == "__main__":
    main()
