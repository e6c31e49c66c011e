"""Crashes in the middle of what a writer does to its files: after any operation, or half of a write."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

OPERATIONS = ("open", "pwrite", "ftruncate", "fsync", "fdatasync", "unlink", "rename", "replace")


class Crash(BaseException):
    """The process ends here."""


class CrashAfter:
    """Lets a number of file operations happen, and then crashes; counts them."""

    def __init__(self, operations: int, halves: bool = False) -> None:
        self.left, self._halves = operations, halves

    def installed(self, patch: pytest.MonkeyPatch) -> None:
        for name in OPERATIONS:
            patch.setattr(os, name, self._crashing(name, getattr(os, name)))

    def _crashing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operate(*given: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left < 0 and name == "pwrite" and self._halves:
                file, content, at = given
                real(file, bytes(content)[: len(content) // 2], at)
            if self.left < 0:
                raise Crash(name)
            return real(*given, **named)

        return operate


def contents(folder: Path) -> dict[str, bytes]:
    """Every file in and below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def put_back(folder: Path, files: dict[str, bytes]) -> None:
    """Makes a folder hold just these files."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.unlink()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
