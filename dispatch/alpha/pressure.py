"""Pressure stall information of the kernel: the share of the time in which some task waited for a processor.

It is that of the dispatcher's own cgroup (version 2) if the kernel has it, otherwise of the whole machine, otherwise
not available: old kernels, those started with psi=0 and other systems do not have it.
"""

from pathlib import Path

HOST = Path("/proc/pressure/cpu")
OWN_GROUP = Path("/proc/self/cgroup")
MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


class CpuPressure:
    """Observes one file of the kernel."""

    def __init__(self, source: Path | None) -> None:
        self._source = source
        self._before: tuple[float, float] | None = None
        """When it was read last, and the seconds waited by then."""

    def read(self, now: float) -> float | None:
        """The share of the time since the last reading in which some task waited; at first, of the last 10 seconds."""
        read = _read(self._source) if self._source is not None else None
        if read is None:
            return None
        recent, total_seconds = read
        before, self._before = self._before, (now, total_seconds)
        if before is None or now <= before[0]:
            return recent
        return min(1.0, max(0.0, (total_seconds - before[1]) / (now - before[0])))


def pressure_source(own_group: Path = OWN_GROUP, mounts: tuple[Path, ...] = MOUNTS, host: Path = HOST) -> Path | None:
    """The file to read: of the own cgroup, otherwise of the host; None if neither can be read."""
    group = _unified_group(own_group)
    groups = [mount / group.lstrip("/") / "cpu.pressure" for mount in mounts] if group is not None else []
    return next((source for source in (*groups, host) if _read(source) is not None), None)


def _unified_group(own_group: Path) -> str | None:
    """The path of the own cgroup in the one hierarchy of version 2."""
    try:
        lines = own_group.read_text().splitlines()
    except OSError:
        return None
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)


def _read(source: Path) -> tuple[float, float] | None:
    """The share of the last 10 seconds and the total seconds, from the line "some avg10=… avg60=… avg300=… total=…"."""
    try:
        some = next(line for line in source.read_text().splitlines() if line.startswith("some "))
        figures = dict(figure.split("=") for figure in some.split()[1:])
        return float(figures["avg10"]) / 100, int(figures["total"]) / 1e6
    except (OSError, StopIteration, KeyError, ValueError):
        return None
