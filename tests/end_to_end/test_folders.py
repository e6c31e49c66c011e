"""A run's folder on a disk without room. Real processes, real disks."""

import time
from pathlib import Path
from signal import SIGTERM

import pytest

from dispatch.journal.history import read_manifests
from tests.disks import fill, small_disk
from tests.end_to_end.processes import children_of, run, start, wait_until

SMALL = ("stream.batch=64", "dispatch.workers=1", "dispatch.links_gbit=", "ps.shards=1", "api.port=0")


class Steps:
    """The steps of a journal, and whether they go on."""

    def __init__(self, journal: Path) -> None:
        self._journal, self.newest, self._since = journal, 0, time.monotonic()

    def stand_still(self) -> bool:
        """Whether there has been no new one for two seconds."""
        newest = read_manifests(self._journal)[-1].step
        if newest != self.newest:
            self.newest, self._since = newest, time.monotonic()
        return time.monotonic() - self._since > 2.0


def arguments(command: str, folder: Path, *more: str) -> list[str | Path]:
    settings = [part for setting in (*SMALL, *more) for part in ("--set", setting)]
    return [command, "--folder", folder, *settings]


def test_a_full_disk_at_the_start_is_one_clear_line(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        fill(disk)
        ended = run(*arguments("up", disk / "run"))
        assert (ended.returncode, "Traceback" in ended.stderr) == (1, False)
        last = ended.stderr.splitlines()[-1]
        assert f"cannot use {disk}/run/settings.json: No space left on device" in last
        assert "make room there, or use a folder on another disk" in last
        assert not list(disk.glob("run/.settings*"))


@pytest.mark.timeout(180)
def test_a_run_waits_for_room_on_a_disk_that_becomes_full_and_goes_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4096) as disk:
        process = start(*arguments("demo", disk / "run", f"stream.folder={tmp_path / 'log'}"))
        wait_until(lambda: len(read_manifests(disk / "run" / "journal")) > 3, process)
        filling = fill(disk)
        steps = Steps(disk / "run" / "journal")
        wait_until(steps.stand_still, process)
        filling.unlink()
        reached = steps.newest
        wait_until(lambda: read_manifests(disk / "run" / "journal")[-1].step > reached + 3, process)
        process.send_signal(SIGTERM)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        numbers = [manifest.step for manifest in read_manifests(disk / "run" / "journal")]
        assert numbers == list(range(1, len(numbers) + 1))
        assert children_of(disk / "run") == []
