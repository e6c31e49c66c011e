"""A real run on a GPU that another program uses for a while, three times. Takes four minutes, and ten more for quiet.

    python3 -m tests.dispatch.alpha.gpu_live --quiet-seconds 600

Starts ``freshet demo`` with two workers and the dispatcher on the one GPU, and a served model. Links are so slow that
decisions take less time than steps: otherwise alpha falls because they are late, load or no load. Events come hardly
faster than they are trained on: the log would not keep ten minutes of many more. Three times another
process keeps all of the GPU busy for 20 seconds. Says when alpha or the backend changed and why, and by what NVML could
say; ends with 1 unless every load was answered within 10 seconds and taken back within 30 seconds of its end, and
nothing moved in the quiet time before.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq

from dispatch.placement.assign.backend import has_gpu
from dispatch.progress.status import Status
from tests.dispatch.alpha.loop import Load

ROOT = str(Path(__file__).resolve().parents[3])
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))}
LOADS, LOAD_SECONDS, REST_SECONDS = 3, 20.0, 40.0
MOVED_WITHIN, BACK_WITHIN = 10.0, 30.0
START_SECONDS = 240.0
SILENT_SECONDS = 15.0
WARM_SECONDS = 30.0
"""of training before anything is looked at: it must be known what is usual"""
BURN = """
import cupy
code = "extern \\"C\\" __global__ void burn(float* a) {" \\
    "float x = a[threadIdx.x]; for (int k = 0; k < 50000; ++k) x = x * 1.000001f + 1e-7f; a[threadIdx.x] = x; }"
burn, numbers, stream = cupy.RawKernel(code, "burn"), cupy.zeros(1024, cupy.float32), cupy.cuda.get_current_stream()
burn((1,), (1024,), (numbers,))
stream.synchronize()
print("burns", flush=True)
while True:
    burn((8192,), (1024,), (numbers,))
    while not stream.done:
        pass
"""
"""keeps all of a GPU busy; needs nothing but the compiler that the solver needs"""


@dataclass
class Seen:
    """A run's status over time; what changed is printed."""

    socket: "zmq.Socket[bytes]"
    began: float = field(default_factory=time.monotonic)
    now: Status | None = None
    changes: list[tuple[float, float, str]] = field(default_factory=list)
    """seconds since the beginning, alpha, backend; the first is what held at first"""

    def follow(self, seconds: float, until: Callable[[Status], bool] = lambda _: False) -> bool:
        """For so long, or until that is so; returns whether it is. Raises AssertionError if the run falls silent: then
        nothing would change, whatever happened to the GPU.
        """
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            is_heard = self.socket.poll(int(1000 * min(left, SILENT_SECONDS)))
            assert is_heard or left < SILENT_SECONDS, f"no status for {SILENT_SECONDS:g} s after {self.now}"
            if is_heard:
                self.now = msgspec.json.decode(self.socket.recv(), type=Status)
                self._note(self.now)
                if until(self.now):
                    return True
        return False

    def _note(self, status: Status) -> None:
        if status.alpha is None or (self.changes and self.changes[-1][1:] == (status.alpha, status.opt_backend)):
            return
        self.changes.append((time.monotonic() - self.began, status.alpha, status.opt_backend or ""))
        at, reason = self.changes[-1][0], status.alpha_reason or "at first"
        say(f"{at:6.1f} s  step {status.step}  alpha {status.alpha:g} on {status.opt_backend}: {reason}")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def check(seen: Seen, quiet_seconds: float) -> list[str]:
    """Everything that was not as it must be."""
    seen.follow(WARM_SECONDS)
    wrong, held = [], seen.changes[-1][1:]
    say(f"holds: alpha {held[0]:g} on {held[1]}; readings {seen.now.alpha_readings if seen.now else {}}")
    if held[1] != "cuda":
        wrong.append(f"exact assignment began on {held[1]!r}; expected 'cuda'; give a larger --batch")
    if seen.follow(quiet_seconds, lambda _: seen.changes[-1][1:] != held):
        wrong.append("something changed without a load")
    load = Load(BURN)
    for number in range(1, LOADS + 1):
        say(f"load {number} begins at {time.monotonic() - seen.began:.1f} s")
        load.start()
        load.wait()
        began = time.monotonic()
        try:
            moved = seen.follow(LOAD_SECONDS, lambda _: seen.changes[-1][1:] != held)
            took = time.monotonic() - began
            seen.follow(LOAD_SECONDS - took)
            readings = seen.now.alpha_readings if seen.now else {}
        finally:
            load.stop()
        ended = time.monotonic()
        back = seen.follow(REST_SECONDS, lambda _: seen.changes[-1][1:] == held)
        back_took = time.monotonic() - ended
        say(f"load {number}: moved {moved} after {took:.1f} s, back {back} {back_took:.1f} s after it")
        say(f"at its end: {readings}")
        if not moved or took > MOVED_WITHIN:
            wrong.append(f"load {number} was answered after {took:.1f} s; expected {MOVED_WITHIN:g} s at most")
        if not back or back_took > BACK_WITHIN:
            wrong.append(f"what held before load {number} did not come back within {BACK_WITHIN:g} s")
        seen.follow(REST_SECONDS - back_took)
    return wrong


def run(folder: Path, settings: list[str], rate: float, quiet_seconds: float) -> list[str]:
    """What was wrong."""
    run_folder, out = folder / "run", folder / "out"
    given = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "infra.cli.entry", "demo", "--rate", f"{rate:g}"]
    with out.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--run", str(run_folder), *given], stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=ENV
        )
    endpoints, until = run_folder / "endpoints" / "dispatcher", time.monotonic() + START_SECONDS
    try:
        while not endpoints.exists() and time.monotonic() < until and process.poll() is None:
            time.sleep(0.1)
        if not endpoints.exists():
            return [f"the run does not start: {out.read_text()[-4000:]}"]
        with zmq.Context() as context, context.socket(zmq.SUB) as socket:
            socket.set(zmq.SUBSCRIBE, b"")
            socket.set(zmq.LINGER, 0)
            socket.connect(endpoints.read_text().split()[1])
            seen = Seen(socket)
            if not seen.follow(START_SECONDS, lambda status: status.step > 20):
                return [f"the run does not train: {out.read_text()[-4000:]}"]
            return check(seen, quiet_seconds)
    except AssertionError as problem:
        return [f"{problem}; the run's last words: {out.read_text()[-4000:]}"]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(START_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quiet-seconds", type=float, default=600.0)
    parser.add_argument("--batch", type=int, default=16_384)
    parser.add_argument("--rate", type=float, default=65_000.0)
    parser.add_argument("--policy", default="esd:1")
    parser.add_argument("--set", dest="settings", action="append", default=[])
    asked = parser.parse_args()
    if not has_gpu():
        sys.exit("cannot put a GPU under load; none was found; run it on a machine with cupy and a CUDA device")
    settings = [
        *(f"stream.batch={asked.batch}", f"dispatch.policy={asked.policy}", "dispatch.workers=2"),
        *(
            "dispatch.links_gbit=0.2,0.2",
            "dispatch.cache_rows=200000",
            "rows.dim=64",
            "trainer.device=cuda",
            "api.port=0",
            *asked.settings,
        ),
    ]
    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        wrong = run(Path(folder), settings, asked.rate, asked.quiet_seconds)
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
