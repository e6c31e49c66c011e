"""A run's folder on a disk without room. Real processes, real disks."""

from pathlib import Path
from signal import SIGTERM

from dispatch.journal.history import read_manifests
from tests.disks import fill, small_disk
from tests.end_to_end.processes import children_of, run, start, wait_until

SMALL = ("stream.batch=64", "dispatch.workers=1", "dispatch.links_gbit=", "ps.shards=1", "api.port=0")


def arguments(command: str, folder: Path, *more: str) -> list[str | Path]:
    settings = [part for setting in (*SMALL, *more) for part in ("--set", setting)]
    return [command, "--run", folder, *settings]


def test_a_full_disk_at_the_start_is_one_clear_line(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        fill(disk)
        ended = run(*arguments("up", disk / "run"))
        assert (ended.returncode, "Traceback" in ended.stderr) == (1, False)
        last = ended.stderr.splitlines()[-1]
        assert f"cannot use {disk}/run/settings.json: No space left on device" in last
        assert "make room there, or use a folder on another disk" in last
        assert not list(disk.glob("run/.settings*"))


def test_a_run_waits_for_room_on_a_disk_that_becomes_full_and_goes_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4096) as disk:
        (disk / "run" / "logs").mkdir(parents=True)
        (disk / "run" / "logs" / "dispatcher.log").symlink_to(told := tmp_path / "dispatcher.log")
        process = start(*arguments("demo", disk / "run", f"stream.folder={tmp_path / 'log'}"))
        wait_until(lambda: len(read_manifests(disk / "run" / "journal")) > 3, process)
        filling = fill(disk)
        wait_until(lambda: "training pauses until the journal can be written" in told.read_text(), process)
        reached = read_manifests(disk / "run" / "journal")[-1].step
        filling.unlink()
        wait_until(lambda: read_manifests(disk / "run" / "journal")[-1].step > reached + 3, process)
        process.send_signal(SIGTERM)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        numbers = [manifest.step for manifest in read_manifests(disk / "run" / "journal")]
        assert numbers == list(range(1, len(numbers) + 1))
        assert children_of(disk / "run") == []
