"""Reports the kernels that a process compiles: in its log, and in a file that its supervisor reads.

The file is next to that with the process's endpoint, and exists only while kernels are compiled.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from infra.base.process import write_whole

if TYPE_CHECKING:  # loads numba, which a supervisor does not need
    from infra.base.kernels import Compilation

LINE_SECONDS = 2.0
"""Time between two lines of the log; the file changes with every kernel."""


def compiling_file(endpoint_file: Path) -> Path:
    return endpoint_file.with_name(f"{endpoint_file.name}.kernels")


class CompilationReport:
    """Records what one process compiles."""

    def __init__(self, endpoint_file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = compiling_file(endpoint_file)
        self._clock = clock
        self._began: float | None = None
        self._next_line = 0.0

    def __call__(self, compilation: "Compilation") -> None:
        log = structlog.get_logger()
        now = self._clock()
        if self._began is None:
            self._began = self._next_line = now
        facts = {"ready": compilation.ready, "most": compilation.most}
        if compilation.state != "under way":
            log.info(f"compiling kernels: {compilation.state}", **facts, seconds=round(now - self._began, 1))
            self._path.unlink(missing_ok=True)
            self._began = None
            return
        if now >= self._next_line:
            log.info("compiling kernels, once after an installation", **facts)
            self._next_line = now + LINE_SECONDS
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, f"{compilation.ready} of at most {compilation.most}")


def compiled_so_far(endpoint_file: Path | None) -> str:
    """What a process wrote there; empty if it compiles nothing."""
    if endpoint_file is None:
        return ""
    try:
        return compiling_file(endpoint_file).read_text()
    except OSError:
        return ""
