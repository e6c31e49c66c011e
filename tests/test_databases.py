"""The PostgreSQL that tests break."""

import threading

import psutil

from tests.databases import is_there, running_postgres
from tests.end_to_end.processes import wait_until


def test_a_killed_server_has_left_no_process_behind() -> None:
    with running_postgres() as server:
        processes = server.processes()
        postmaster, late, *_ = processes
        late.suspend()  # it ends only after it is resumed
        left: list[list[psutil.Process]] = []

        def kill() -> None:
            server.kill()
            left.append([process for process in processes if is_there(process)])

        killing = threading.Thread(target=kill)
        killing.start()
        wait_until(lambda: not is_there(postmaster))
        killing.join(0.3)  # long enough for a kill that does not wait to return
        late.resume()
        killing.join()
        assert left == [[]]
        server.start()


def test_a_database_is_asked_for_again_until_its_server_answers() -> None:
    with running_postgres() as server:
        server.stop()
        made: list[str] = []
        making = threading.Thread(target=lambda: made.append(server.new_database()))
        making.start()
        making.join(0.3)  # long enough for a single attempt to fail
        server.start()
        making.join()
        assert len(made) == 1
