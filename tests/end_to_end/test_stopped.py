"""Processes without a supervisor that are stopped (SIGSTOP), replaced, and go on (SIGCONT) have no say any more."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dispatch.journal.history import read_history
from infra.base.process import Stop
from ingest.config import StreamConfig
from ingest.main import ProducerJob, run_producer
from tests.end_to_end.processes import children_of, run, start, wait_for_line, wait_until
from tests.ports import free_port

BATCH, STEPS = 64, 8
SILENCE_SECONDS = 8
"""longer than a process that runs is silent, however busy the machine"""
REPLACE_SECONDS = 600
"""longer than new processes take to start"""


@contextmanager
def leaving_nothing(setting: str) -> Iterator[None]:
    """Ends what a failed test has left: processes that were given that setting."""
    try:
        yield
    finally:
        for process in children_of(Path(setting)):
            process.kill()


@pytest.mark.timeout(400)
def test_processes_that_were_replaced_while_they_were_stopped_are_refused_and_end(tmp_path: Path) -> None:
    folder, endpoint = tmp_path / "run", f"tcp://127.0.0.1:{free_port()}"
    sizes = f"stream.batch={BATCH}", "dispatch.workers=1", "ps.shards=1", "rows.dim=4"
    limits = f"dispatch.silence_seconds={SILENCE_SECONDS}", f"dispatch.replace_seconds={REPLACE_SECONDS}"
    where = f"folder={folder}", f"stream.folder={tmp_path / 'log'}"
    given = [part for setting in (*sizes, *limits, *where) for part in ("--set", setting)]

    def produce() -> None:
        run_producer(ProducerJob(StreamConfig(folder=tmp_path / "log"), limit=STEPS * BATCH), Stop())

    def step() -> int:
        return read_history(folder / "journal").step

    def start_both() -> "tuple[subprocess.Popen[str], subprocess.Popen[str]]":
        shard = start("ps", "--shard", "0", "--endpoint", "tcp://127.0.0.1:*", "--dispatcher", endpoint, *given)
        return shard, start("worker", "--name", "worker-0", "--dispatcher", endpoint, *given)

    with leaving_nothing(where[0]):
        dispatching = "--endpoint", endpoint, "--samples", str(3 * STEPS * BATCH), *given
        produce()
        dispatcher, stopped = start("dispatcher", *dispatching), start_both()
        wait_until(lambda: step() == STEPS, dispatcher)
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        second = run("dispatcher", *dispatching)
        assert (second.returncode, "another process" in second.stderr) == (1, True), second.stderr
        wait_for_line(dispatcher, f"gave no sign of life for {SILENCE_SECONDS} s")
        shard, worker = start_both()
        produce()
        wait_until(lambda: step() > STEPS, dispatcher)
        for process, reason in zip(stopped, ("a newer process serves as shard 0", "a newer worker named"), strict=True):
            process.send_signal(signal.SIGCONT)
            output, _ = process.communicate(timeout=100)
            assert (process.returncode, reason in output) == (1, True), output
        produce()
        outputs = [process.communicate(timeout=300)[0] for process in (dispatcher, worker)]
        assert (dispatcher.returncode, worker.returncode) == (0, 0), outputs
        shard.terminate()
        output, _ = shard.communicate(timeout=100)
        assert shard.returncode == 0, output
        history = read_history(folder / "journal")
        assert history.samples == 3 * STEPS * BATCH
        assert history.ended is not None
        assert history.ended.differs_at is None
