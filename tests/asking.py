"""The command ``freshet`` of a shell: has a loaded process fork it, and stands for it (``tests/preloaded.py``).

    python -IS tests/asking.py PROCESS SCRIPT FOLDER ARGUMENT...

Imports only what loads fast.
"""

import json
import os
import signal
import socket
import sys

NAME = "freshet-tests-"
"""Prefix of an abstract socket; followed by the id of the process whose children it makes."""
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MESSAGE_BYTES = 1 << 17


def main() -> None:
    """Asks the loaded child of a process; executes the script if that would load modules in another way."""
    owner, script, folder, *arguments = sys.argv[1:]
    wished = {
        "program": script,
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),  # noqa: PTH109 (pathlib loads slowly)
        "files": [0, 1, 2],
        "own_session": False,
        "guardians": folder,
    }
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(f"\0{NAME}{owner}")
        socket.send_fds(connection, [json.dumps(wished).encode()], [0, 1, 2])
        answer = connection.recv(MESSAGE_BYTES)
        if not answer:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
            os.execv(script, [script, *arguments])
        process = int(answer)
        for number in PASSED_ON:
            signal.signal(number, lambda number, _: os.kill(process, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        status = int(connection.recv(MESSAGE_BYTES))
    if status < 0:
        if -status in PASSED_ON:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
