"""The process of ``freshet up`` that a program has started.

It has a session of its own, so Ctrl-C in the program, or the interruption of a notebook's kernel, does not reach it. It
stops in order when its standard input ends: the kernel of the system closes that pipe however the program ends.
"""

import subprocess
from collections.abc import Sequence
from tempfile import TemporaryFile

from infra.base.errors import ConfigError, ProcessFailed
from infra.base.parts import COMMAND
from infra.base.process import WRONG_SETTING


class OwnedProcess:
    """One such process."""

    def __init__(self, arguments: Sequence[str], *, keep: bool) -> None:
        """keep: it goes on when this program ends."""
        self._errors = TemporaryFile()  # noqa: SIM115
        tied = [] if keep else ["--stop-with-input"]
        self._process = subprocess.Popen(
            [*COMMAND, "up", *tied, *arguments],
            stdin=subprocess.DEVNULL if keep else subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,
        )

    def has_ended(self) -> bool:
        """Whether it has ended well; raises ConfigError or ProcessFailed with its message if it has failed."""
        status = self._process.poll()
        if not status:
            return status == 0
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().removeprefix("freshet: ")
        message = said or f"freshet up ended with status {status}; expected 0; see supervisor.log in the run's folder"
        raise (ConfigError if status == WRONG_SETTING else ProcessFailed)(message)

    def stop(self) -> None:
        """Stops the run in order, and waits until all of its processes have ended."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self.close()

    def close(self) -> None:
        """Lets go of the process, which ends now if it is tied to this one."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._errors.close()
