"""A run on this machine for a program or a notebook: started, watched, steered and stopped.

It is the run of ``freshet up``: the same supervised processes and the same folder, so every command knows it. A handle
asks its control plane over HTTP, with a token of its own; a ``Run`` is therefore a client with a few more methods.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from freshet_client import Client
from rich.console import Console

from dispatch.commands.supervision import ListedProcess
from dispatch.errors import NoAnswer
from dispatch.journal.occupied import is_under_way
from freshet.overrides import as_overrides, schema_setting
from freshet.owned import OwnedProcess
from freshet.picture import LivePicture, as_html
from infra.base.errors import ConfigError, ProcessFailed
from infra.base.run_folder import AGENT, dashboard_link, read_endpoint
from infra.cli.options import PlacedRun, new_run
from infra.cli.steer import sockets
from infra.cli.steer.status import describe, status_in
from infra.cli.token import with_store
from infra.run.agent.running import find_running
from infra.run.folder import find_folder
from infra.run.notices import API, SERVE
from infra.run.settings import STORED, read_stored
from infra.web.store.place import read_database
from infra.web.store.rows import SCOPES
from infra.web.store.tokens import LINK_SCOPES

if TYPE_CHECKING:
    import pyarrow as pa

    from infra.web.store.access import AccessStore

UsedT = TypeVar("UsedT")
TOKEN_SECONDS = 30 * 86400.0
"""Lifetime of a handle's token; closing the handle revokes it."""
LOOK_SECONDS = 0.1
FAILS = 3
"""Restarts of a process after which nobody waits until it is ready."""
TOKEN_NAME = "freshet.Run"


def start(
    schema: str | Path = "",
    *,
    run: str | Path = "",
    workers: int | None = None,
    samples: int | None = None,
    settings: Mapping[str, Any] | None = None,
    keep: bool = False,
) -> "Run":
    """Starts a run on this machine, or resumes one that was stopped; returns once it takes events.

    schema: of a new run: a built-in one's name, or the path of a TOML file. run: its name in ``runs``, or its folder; a
    new name by default. samples: stop after as many. settings: others of docs/settings.md by name. keep: whether the
    run goes on when this program ends; otherwise it stops in order, however the program ends.
    """
    folder = _place(str(run)).absolute()
    given = [] if (folder / STORED).exists() else [f"stream.folder={folder / 'log'}"]  # events of its own
    given += as_overrides(settings or {})
    given += [schema_setting(schema)] if schema else []
    given += [] if workers is None else [f"dispatch.workers={workers}"]
    limit = [] if samples is None else ["--samples", str(samples)]
    overrides = [part for override in given for part in ("--set", override)]
    process = OwnedProcess(["--run", str(run) or folder.name, *limit, *overrides], keep=keep)
    try:
        _await_ready(folder, process)
        return Run(folder, process, keep=keep)
    except BaseException:  # also Ctrl-C
        process.stop()
        raise


def attach(run: str | Path) -> "Run":
    """A handle for a run that is under way on this machine, as after the restart of a notebook's kernel.

    run: its name in ``runs``, or its folder. Closing the handle leaves the run alone.
    """
    folder = find_folder(str(run)).absolute()
    find_running(folder, read_stored(folder))
    _await_ready(folder, None)
    return Run(folder, None, keep=True)


class Run(Client):
    """A run under way, and a client of its control plane and its prediction server.

    Use it as a context manager, or call ``close``. ``predict``, ``send``, ``status``, ``set_alpha``, ``drain_worker``
    and all other methods of a client are about this run. As the last line of a notebook's cell it is a live picture.
    """

    def __init__(self, folder: Path, process: OwnedProcess | None, *, keep: bool) -> None:
        """process: that of ``freshet up``, if this program has started it; it must be ready."""
        self.folder = folder
        self.name = read_stored(folder).run
        self._process = process
        self._keep = keep
        self._picture: LivePicture | None = None
        expires_at = time.time() + TOKEN_SECONDS
        token, secret = self._with_store(lambda store: store.tokens.create(TOKEN_NAME, SCOPES, expires_at))
        self._token = token.id
        super().__init__(_endpoint(folder, API), secret, run=self.name, server=read_endpoint(folder, SERVE) or "")

    def __repr__(self) -> str:
        return f"<freshet.Run {self.name!r} in {self.folder}>"

    def close(self) -> None:
        """Closes the handle. A run that this program has started, and that it does not keep, is stopped in order."""
        if self._picture is not None:
            self._picture.close()
        if self._process is not None:
            self._process.close() if self._keep else self._process.stop()
        self._with_store(lambda store: store.tokens.revoke(self._token))
        super().close()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def is_running(self) -> bool:
        """Whether its processes are there."""
        return is_under_way(self.folder)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until the run is over, as after ``stop``, but at most that long; returns whether it is.

        Raises ProcessFailed with its message if it has failed.
        """
        until = None if seconds is None else time.monotonic() + seconds
        while self.is_running:
            if until is not None and time.monotonic() >= until:
                return False
            time.sleep(LOOK_SECONDS)
        if self._process is not None:
            while not self._process.has_ended():
                time.sleep(LOOK_SECONDS)
        return True

    # ── figures ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def metrics(self, what: Literal["steps", "quality"] = "steps") -> "pa.Table":
        """Figures of the run so far, oldest first; ``to_pylist()`` and ``to_pandas()`` of a table make rows of them.

        what: steps, with samples, loss, seconds, moved bytes and alpha; or quality, AUC and calibration in windows.
        """
        import pyarrow as pa

        if what == "steps":
            return pa.Table.from_pylist(self.steps())
        windows = self.quality()["windows"]
        return pa.Table.from_pylist([{**_numbers(each), **_numbers(each["quality"])} for each in windows])

    def dashboard(self) -> str:
        """A link that signs in to the dashboard, once, within 15 minutes."""
        return dashboard_link(self.address.url, self._with_store(lambda store: store.tokens.create_link(LINK_SCOPES)))

    def watch(self) -> None:
        """Shows the run in a terminal until it is over. Ctrl-C closes the view, not the run."""
        from infra.run.display import Display

        with Display(Console(), hint="Ctrl-C ends the display", keeps_picture=True) as display:
            try:
                while self.is_running:
                    if (found := status_in(self.status())) is not None:
                        display.show(found)
                    time.sleep(1.0)
            except KeyboardInterrupt:
                return

    def _repr_html_(self) -> str:
        """A picture of the run now."""
        read = self.status()
        return as_html(status_in(read), describe(read), f"{self.address.url}/dashboard/")

    def _ipython_display_(self) -> None:
        """A picture in a notebook that is drawn again every second until the run is over or shown elsewhere."""
        if self._picture is not None:
            self._picture.close()
        self._picture = LivePicture(self._repr_html_, lambda: self.is_running)

    def _with_store(self, use: "Callable[[AccessStore], Awaitable[UsedT]]") -> UsedT:
        """Makes one query to the database of tokens; in a thread, because a notebook has an event loop in this one."""
        url = read_database(self.folder, API)
        if url is None:
            raise ProcessFailed(
                f"the control plane of the run in {self.folder} has not written where its tokens are; expected "
                "endpoints/api.database; start the run without --no-api"
            )
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(with_store, url, use).result()


def _place(run: str) -> Path:
    """The folder of the run with this name or path, or of a new one."""
    named = PlacedRun(run).place
    return named if named is not None else Path(new_run("notebook")["folder"])


def _await_ready(folder: Path, process: OwnedProcess | None) -> None:
    """Waits until all processes are ready or fail; raises ProcessFailed if the run ends or its control plane fails."""
    restarts: dict[str, int] = {}
    """Of each process when it was first seen: those that a run can do without are restarted as long as it lasts."""
    while True:
        if (process is not None and process.has_ended()) or (process is None and not is_under_way(folder)):
            raise ProcessFailed(f"the run in {folder} ended before it was ready; expected one that waits for events")
        listed = _processes(folder)
        waiting = [each for each in listed if each.state not in ("ready", "finished")]
        failing = {
            each.name
            for each in waiting
            if each.state == "failed" or each.restarts - restarts.get(each.name, each.restarts) >= FAILS
        }
        if listed and (API in failing or all(each.name != API for each in listed)):
            raise ProcessFailed(f"the run in {folder} has no control plane; expected one; see logs/api.log there")
        if listed and len(failing) == len(waiting):
            return
        restarts = {each.name: each.restarts for each in listed} | restarts
        time.sleep(LOOK_SECONDS)


def _processes(folder: Path) -> Sequence[ListedProcess]:
    """The run's processes; none while nobody answers."""
    if not (folder / STORED).exists() or not is_under_way(folder) or read_endpoint(folder, AGENT) is None:
        return ()
    try:
        return sockets.processes(find_running(folder, read_stored(folder)))
    except (NoAnswer, ProcessFailed, ConfigError):  # it begins, ends, or an earlier one was killed
        return ()


def _endpoint(folder: Path, process: str) -> str:
    address = read_endpoint(folder, process)
    assert address is not None, "it is ready"
    return address


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is None or isinstance(value, int | float)}
