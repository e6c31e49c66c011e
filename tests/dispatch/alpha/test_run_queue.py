"""Waiting for a processor, by the kernel's count."""

from pathlib import Path

from dispatch.alpha.run_queue import RunQueue


def test_the_share_is_of_the_time_since_the_last_reading(tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    file.write_text("1000000000 5000000000 17\n")
    queue = RunQueue(file)
    assert queue.read() is None
    file.write_text("1030000000 5010000000 18\n")
    assert queue.read() == 0.25


def test_a_thread_that_slept_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    file.write_text("1000000000 5000000000 17\n")
    queue = RunQueue(file)
    queue.read()
    file.write_text("1000000100 5000000900 18\n")
    assert queue.read() is None


def test_a_system_without_the_file_says_nothing(tmp_path: Path) -> None:
    queue = RunQueue(tmp_path / "none")
    assert [queue.read(), queue.read()] == [None, None]
