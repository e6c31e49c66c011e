"""A live run, as commands find it: by its folder."""

from dataclasses import dataclass
from pathlib import Path

from dispatch.journal.history import JOURNAL
from dispatch.journal.occupied import is_under_way
from infra.base.errors import ConfigError, ProcessFailed
from infra.base.files import naming
from infra.base.wire import Curve, load_curve
from infra.run.agent.agent import AGENT_FILE
from infra.run.settings import Settings

CONTROL_LINE = 2
"""Index in the dispatcher's endpoints: workers', status, control, feed."""


@dataclass(frozen=True)
class RunningRun:
    """What commands need to know of a run."""

    run: str
    folder: Path
    curve: Curve | None

    def agent(self) -> str | None:
        """The endpoint of its supervisor; None if it has none with a control socket."""
        return self._read(AGENT_FILE)

    def dispatcher(self) -> str | None:
        """The endpoint that workers join; None if there is none in this folder."""
        text = self._read("dispatcher")
        return text.split()[0] if text else None

    @property
    def has_dispatcher(self) -> bool:
        """Whether a dispatcher works in this folder, now or after a restart; False for the folder of an agent."""
        return (self.folder / JOURNAL).is_dir()

    def control(self) -> str:
        """The endpoint at which the dispatcher takes commands; raises ProcessFailed if there is none now."""
        endpoints = (self._read("dispatcher") or "").split()
        if len(endpoints) <= CONTROL_LINE:
            raise ProcessFailed(
                f"the dispatcher of run {self.run!r} takes no commands now: its endpoint is not in "
                f"{self.folder / 'endpoints' / 'dispatcher'}; expected a dispatcher that is ready; try again in a while"
            )
        return endpoints[CONTROL_LINE]

    def _read(self, name: str) -> str | None:
        path = self.folder / "endpoints" / name
        with naming(path):
            try:
                return path.read_text().strip()
            except FileNotFoundError:
                return None


def find_running(folder: Path, settings: Settings) -> RunningRun:
    """Raises ConfigError if there is no run in the folder, and ProcessFailed if it is not under way."""
    if not (folder / "endpoints").is_dir():
        raise ConfigError(f"no run in {folder}; expected the folder of a run that is under way; correct --run")
    if not is_under_way(folder):
        raise ProcessFailed(
            f"the run in {folder} is over or was interrupted; expected one that is under way; "
            "'freshet up --run' resumes one that was interrupted"
        )
    curve = load_curve(settings.curve_folder, "server") if settings.curve_folder is not None else None
    return RunningRun(settings.run, folder, curve)
