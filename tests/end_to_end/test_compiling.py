"""A first start, with no compiled kernels: it says how far it is, and a stop meanwhile is an orderly one."""

import signal
import subprocess
from pathlib import Path

from tests.end_to_end.processes import WAIT_SECONDS, children_of, start

RUN = ("demo", "--samples", "1000", "--set", "api.port=0", "--set", "dispatch.workers=1", "--set", "ps.shards=1")
SHARD = ("ps", "--shard", "0", "--endpoint", "tcp://127.0.0.1:*", "--dispatcher", "tcp://127.0.0.1:9")
LAST_KERNEL = {"dispatcher": "coherence.flush-*.nbc", "shard": "digest._sum-*.nbc"}


def stop_when_it_says(process: "subprocess.Popen[str]", text: str, how: signal.Signals) -> str:
    """Sends a signal as soon as the output has the text; returns all of it once the process has ended."""
    with process:
        assert process.stdout is not None
        seen = ""
        while text not in seen:
            line = process.stdout.readline()
            assert line, f"ended without {text!r}: {seen}"
            seen += line
        process.send_signal(how)
        return seen + process.communicate(timeout=WAIT_SECONDS)[0]


def compiled(cache: Path, pattern: str) -> list[Path]:
    return list(cache.glob(f"freshet/kernels/*/{pattern}"))


def test_a_run_that_is_stopped_while_kernels_are_compiled_ends_in_order_and_before_they_are(tmp_path: Path) -> None:
    folder, cache = tmp_path / "run", tmp_path / "cache"
    process = start(*RUN, "--set", f"folder={folder}", XDG_CACHE_HOME=str(cache))
    output = stop_when_it_says(process, "dispatcher (compiles kernels, ", signal.SIGTERM)
    assert process.returncode == 0, output
    log = (folder / "logs" / "dispatcher.log").read_text()
    assert "compiling kernels: stopped" in log
    assert "stopped before the journal was replayed" in log
    assert compiled(cache, "*.nbc")
    assert not compiled(cache, LAST_KERNEL["dispatcher"])
    assert not compiled(cache, "*.lock")
    assert not (folder / "endpoints" / "dispatcher.kernels").exists()
    assert children_of(folder) == []
    assert "killed" not in output


def test_ctrl_c_while_a_process_compiles_its_kernels_ends_it_in_order_and_before_they_are(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    process = start(*SHARD, "--set", f"folder={tmp_path / 'run'}", XDG_CACHE_HOME=str(cache))
    output = stop_when_it_says(process, "compiling kernels, once after an installation", signal.SIGINT)
    assert process.returncode == 0, output
    assert "stopped before it was ready" in output
    assert not compiled(cache, LAST_KERNEL["shard"])
    assert not compiled(cache, "*.lock")
