"""Small disks that can be filled, made read-only and emptied again; and files with every damage that there is.

Files are damaged in place: one that is truncated and written anew goes to the disk when it is closed.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """Mounts a memory disk at a new folder; skips the test where that is not permitted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    if os.name != "posix" or os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no disk to fill: mounting one needs root and a system that permits it")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Takes all room that is left; returns the file that does."""
    with (disk / "filling").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            assert file.tell()
    return disk / "filling"


def flip_each_bit(file: Path) -> Iterator[int]:
    """Flips the bits of a file one after the other, each while the caller looks at it; it is whole again at the end."""
    whole = file.read_bytes()
    with file.open("r+b", buffering=0) as opened:
        for place, byte in enumerate(whole):
            for bit in range(8):
                os.pwrite(opened.fileno(), bytes([byte ^ 1 << bit]), place)
                yield 8 * place + bit
            os.pwrite(opened.fileno(), bytes([byte]), place)


def cut_off_each_byte(file: Path) -> Iterator[int]:
    """Makes a file shorter and shorter, until it is empty."""
    for length in reversed(range(file.stat().st_size)):
        os.truncate(file, length)
        yield length
