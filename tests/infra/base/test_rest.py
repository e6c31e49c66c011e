"""Work that nobody waits for yet: by whom it is done, and where its errors show."""

import threading

import pytest

from infra.base.rest import SMALLEST, LeftOver


def test_little_work_is_done_at_once_and_much_by_another_thread() -> None:
    left, threads = LeftOver(), list[str]()
    for rows in (SMALLEST - 1, SMALLEST):
        left.leave(lambda: threads.append(threading.current_thread().name), rows)
    left.wait()
    assert threads[0] == threading.current_thread().name
    assert threads[1].startswith("rest")


def test_an_error_is_raised_where_the_result_is_needed_and_only_once() -> None:
    left = LeftOver()
    left.leave(_fail, SMALLEST)
    with pytest.raises(ValueError, match="of the other thread"):
        left.wait()
    left.wait()


def _fail() -> None:
    raise ValueError("of the other thread")
