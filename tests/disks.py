"""Small disks that can be filled, made read-only and emptied again; and files with every kind of damage.

Files are damaged in place, because a file that is truncated and rewritten is written to the disk when it is closed.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """Mounts a memory disk at a new folder; skips the test if that is not permitted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    if os.name != "posix" or os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no disk to fill: mounting one needs root and a system that permits it")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Fills the disk; returns the file that does so."""
    with (disk / "filling").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            assert file.tell()
    return disk / "filling"


def flip_each_bit(file: Path) -> Iterator[int]:
    """Flips the bits of a file one after the other, each for one iteration; the file is intact again at the end."""
    whole = file.read_bytes()
    with file.open("r+b", buffering=0) as opened:
        for place, byte in enumerate(whole):
            for bit in range(8):
                os.pwrite(opened.fileno(), bytes([byte ^ 1 << bit]), place)
                yield 8 * place + bit
            os.pwrite(opened.fileno(), bytes([byte]), place)


def cut_off_each_byte(file: Path) -> Iterator[int]:
    """Removes one byte after the other from the end of a file, until it is empty."""
    for length in reversed(range(file.stat().st_size)):
        os.truncate(file, length)
        yield length
