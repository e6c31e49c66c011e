"""Reads a file of lines from a byte on and follows it as it grows, as ``tail -F`` does from the start of the file.

- A line is returned once its end is written, and never before.
- If another file takes the name (rotation), the old one is read to its end, then the new one from its start.
- If the file becomes shorter (truncated in place), it is read again from its start.
- If no file has the name, the reader waits for one.

If a file is left without a last line end, its rest is returned as a line. Lines that were written between the last read
and a truncation are lost to any reader; and a file that has grown beyond its old size by then looks as if it had not
been truncated.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from infra.base.errors import ConfigError
from ingest.producing.readers import PAUSE_SECONDS, READ_BYTES, check_length


class FollowedFile:
    """Returns the lines of a file without blank ones, and None if there are no more yet."""

    def __init__(self, path: Path, start: int = 0, tell: Callable[[str], None] = lambda line: None) -> None:
        """start: the byte to begin with; tell: called when reading continues with another file or at the start of this
        one.
        """
        self._path = path
        self._start = start
        self._tell = tell
        self.position = start
        """Byte of the current file after the last line that was returned."""
        self.is_at_end = False
        """Whether the file held no further whole line when it was last read."""

    def check(self) -> None:
        """Raises ConfigError unless a line begins at the start."""
        size = self._path.stat().st_size
        with self._path.open("rb") as file:
            file.seek(max(0, self._start - 1))
            before = file.read(1) if self._start else b"\n"
        if self._start > size or before != b"\n":
            raise ConfigError(
                f"no line of {self._path} begins at byte {self._start}: it has {size:,} bytes; expected the byte that "
                "an earlier 'freshet produce --follow' of this very file named at its end; correct --from-byte, or "
                "leave it out if the file is a new one"
            )

    def lines(self) -> Iterator[bytes | None]:
        """Never ends by itself; the lines before a None may be written meanwhile."""
        self.check()
        while True:
            try:
                file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # renamed away again before it was opened
                yield None
                time.sleep(PAUSE_SECONDS)
                continue
            try:
                yield from self._lines_of(file)
            finally:
                os.close(file)

    def _lines_of(self, file: int) -> Iterator[bytes | None]:
        """The lines of one file, until another has its name."""
        os.lseek(file, self.position, os.SEEK_SET)
        rest = b""
        number = 0
        is_replaced = False
        while True:
            while chunk := os.read(file, READ_BYTES):
                self.is_at_end = False
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self.position += len(line) + 1
                    number += 1
                    if line.strip():
                        yield line.rstrip(b"\r")
                check_length(self._path, number + 1, rest)
            if is_replaced:  # and read to its end since
                self._tell(f"{self._path} is another file now; continues at its start")
                break
            self.is_at_end = True
            yield None
            time.sleep(PAUSE_SECONDS)
            if os.fstat(file).st_size < self.position + len(rest):
                self._tell(f"{self._path} was truncated; continues at its start")
                break
            is_replaced = self._is_replaced(file)
        self.position = 0
        if rest.strip():
            yield rest.rstrip(b"\r")

    def _is_replaced(self, file: int) -> bool:
        """Whether another file has the name; False if none has it."""
        try:
            return not os.path.samestat(self._path.stat(), os.fstat(file))
        except FileNotFoundError:
            return False
