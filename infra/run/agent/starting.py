"""``freshet agent --runs``: starts runs on request and supervises each, in a separate session.

A request is checked with the settings it would be started with, is stored in ``requests/NAME.json``, and then starts
``freshet up`` in a folder of the run's name. The same request again starts no second run, and resumes one that was
stopped. A different request for that name is refused.

Runs survive an agent that was killed, each with its own supervisor. The next agent finds them by their locks, reports
them, and starts none of them a second time; it does not stop them when it ends, either.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import time
from types import TracebackType

import structlog

from api.runs.places import find_runs
from dispatch.commands.desired import Desired
from dispatch.commands.server import Asked
from dispatch.commands.supervision import STARTER, RunStarted
from dispatch.journal.desired import SteeringRecord, desired_after_all
from dispatch.journal.history import JOURNAL, read_history
from dispatch.journal.occupied import is_under_way
from dispatch.journal.records import Commanded, Stopped
from infra.base.config import check_names
from infra.base.errors import ConfigError, FreshetError
from infra.base.files import naming, refusal, try_lock
from infra.base.parts import COMMAND
from infra.base.process import Stop, write_whole
from infra.run.agent.agent import AGENT_FILE
from infra.run.agent.sockets import PrivateSocket
from infra.run.checks import check_start, plugins_of
from infra.run.defaults import up_settings
from infra.run.notices import Notices
from infra.run.resume import resumed
from infra.run.settings import Settings
from infra.run.supervision.child import ProcessSpec
from infra.run.supervision.supervisor import PASS_SECONDS, Supervisor

LOCK = "agent.lock"
REQUESTS = "requests"
OWN_SETTINGS = ("run", "folder", "api")
"""Settings, or sections, that the agent decides."""
STOP_SECONDS = 60.0
"""How long a run may take to stop, in addition to its dispatcher's time to drain."""


def keep_runs(
    folder: Path, config: Path | None, common: Sequence[str], stop: Stop, tell: Callable[[str], None]
) -> None:
    """Starts and supervises runs until a stop is requested, and then stops them; common: settings of all of them."""
    with sole_agent(folder), Supervisor([], folder) as supervisor:
        notices = Notices(supervisor)
        with RunStarter(supervisor, folder, config, common) as starter:
            for name in starter.left_behind():
                tell(f"run {name!r} is under way without this agent, which will not stop it; see 'freshet runs'")

            def each_pass() -> None:
                starter.serve()
                for line in notices.new():
                    tell(line)

            while not stop.requested:
                supervisor.poll()
                each_pass()
                stop.wait(PASS_SECONDS)
            supervisor.stop_all(each_pass)


@contextmanager
def sole_agent(folder: Path) -> Iterator[None]:
    """Raises ConfigError if another agent starts runs in the folder."""
    with naming(folder):
        file = try_lock(folder / LOCK)
    if file is None:
        raise ConfigError(f"another agent starts runs in {folder}; expected one; stop it, or give another --runs")
    try:
        yield
    finally:
        os.close(file)


class RunStarter:
    """Answers requests for runs, between the passes of a supervisor. Use as a context manager."""

    def __init__(self, supervisor: Supervisor, folder: Path, config: Path | None, common: Sequence[str]) -> None:
        self._supervisor = supervisor
        self._folder = folder
        self._config = config
        self._common = common
        self._private = PrivateSocket(folder / "endpoints" / AGENT_FILE, None, STARTER)
        self._log = structlog.get_logger("agent")

    def __enter__(self) -> "RunStarter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._private.__exit__(kind, error, traceback)

    def serve(self) -> None:
        """Answers one request, if one has arrived; never waits."""
        asked = self._private.control.next()
        if asked is None:
            return
        try:
            self._start(asked)
        except FreshetError as error:
            self._private.control.refuse(asked, str(error))
        except OSError as error:
            self._private.control.refuse(asked, refusal(error))
        else:
            answer = RunStarted(run=asked.message.run, generation=-1, step=-1)
            self._private.control.answer(asked, answer)

    def _start(self, asked: Asked) -> None:
        """Starts the requested run; raises ConfigError if there can be no such run."""
        name = check_names(asked.message.run)
        settings = asked.message.settings
        is_known = self._is_known(name, settings)
        if is_known and (self._is_kept(name) or is_under_way(self._folder / name)):
            self._check_goes_on(name)
            return
        if not is_known:
            self._check_free(name)
        spec = self._spec(name, settings)
        request = self._request(name)
        request.parent.mkdir(exist_ok=True)
        write_whole(request, json.dumps(settings, indent=2) + "\n")
        self._supervisor.add(spec)
        self._log.info("run added", run=name, settings=settings)

    def _is_known(self, name: str, settings: Mapping[str, str]) -> bool:
        """Whether the run was requested before; raises ConfigError if that was with other settings."""
        try:
            before = json.loads(self._request(name).read_bytes())
        except FileNotFoundError:
            return False
        if before != settings:
            raise ConfigError(
                f"run {name!r} was asked for before with other settings; expected the same, or another name; choose one"
            )
        return True

    def _is_kept(self, name: str) -> bool:
        child = self._supervisor.children.get(name)
        return child is not None and child.state not in ("finished", "failed")

    def left_behind(self) -> list[str]:
        """Runs that an earlier agent was asked to start and that are still under way."""
        asked = sorted(request.stem for request in (self._folder / REQUESTS).glob("*.json"))
        return [name for name in asked if not self._is_kept(name) and is_under_way(self._folder / name)]

    def _check_goes_on(self, name: str) -> None:
        """Raises ConfigError if a live run is stopping, so that it would not do what is requested."""
        records = read_history(self._folder / name / JOURNAL).steering
        child = self._supervisor.children.get(name)
        is_stopping = desired_after_all(Desired(), records).is_stopping
        if child is not None and child.running:  # it may have stopped and not ended; an older stop no longer matters
            began = time() - child.seconds
            is_stopping = any(_is_stop(record) and record.at_seconds >= began for record in records)
        if is_stopping:
            raise ConfigError(
                f"run {name!r} is stopping; expected one that has stopped, which the same request resumes; ask again "
                "in a moment"
            )

    def _check_free(self, name: str) -> None:
        """Raises ConfigError if a run of that name, or anything else, exists already."""
        if name in find_runs(self._folder) or (self._folder / name).exists():
            raise ConfigError(f"there is a run, or folder, {name!r} in {self._folder} already; choose another name")

    def _spec(self, name: str, settings: Mapping[str, str]) -> ProcessSpec:
        """The process of a run; raises ConfigError for settings with which it would not start."""
        own = [setting for setting in settings if setting.partition(".")[0] in OWN_SETTINGS]
        if own:
            raise ConfigError(f"settings {', '.join(own)} are the agent's to decide; expected others; leave them out")
        folder = self._folder / name
        fixed = [f"run={name}", f"folder={folder}"]
        chosen = [*self._common, *(f"{key}={value}" for key, value in settings.items()), *fixed]
        found = up_settings(self._config, chosen, {})
        check_plugins(found, settings)
        found = resumed(found, self._config, chosen) or found
        check_start(found)
        config = [] if self._config is None else ["--config", str(self._config)]
        overrides = [part for setting in chosen for part in ("--set", setting)]
        return ProcessSpec(
            name,
            [*COMMAND, "up", "--no-api", "--no-serve", *config, *overrides],
            restart="on_failure",
            may_finish=True,
            essential=False,
            stop_seconds=found.dispatch.drain_seconds + STOP_SECONDS,
        )

    def _request(self, name: str) -> Path:
        return self._folder / REQUESTS / f"{name}.json"


def check_plugins(found: Settings, asked: Mapping[str, str]) -> None:
    """Raises ConfigError if a request names code of another package, unless the agent's settings allow it."""
    plugged = plugins_of(found)
    if (named := sorted(plugged.keys() & asked.keys())) and not found.api.plugins:
        raise ConfigError(
            f"{named[0]} = {plugged[named[0]]!r} is a plug-in; expected what Freshet comes with; start the agent with "
            "--set api.plugins=true to allow others"
        )


def _is_stop(record: SteeringRecord) -> bool:
    return isinstance(record, Stopped) or (isinstance(record, Commanded) and record.verb == "stop")
