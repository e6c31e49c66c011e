"""``freshet chaos``: kills and stops processes of a real run at random, and checks the result."""

import secrets
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from infra.base.errors import ConfigError, FreshetError
from infra.base.process import check_output, stop_on_signals, write_whole
from infra.cli.options import PlacedRun, SettingsOptions, grouped
from infra.cli.verify import show_findings

if TYPE_CHECKING:
    from infra.chaos.main import ChaosJob

DEFAULTS: dict[str, dict[str, Any]] = {
    "dispatch": {"workers": 3},
    "ps": {"shards": 2},
    "stream": {"batch": 128, "partitions": 3},
    "rows": {"dim": 8},
    "api": {"port": 0},
    "serving": {"port": 0},
    "checkpoints": {"seconds": 5, "kept": 100_000},  # keeps all, so that the checker has the whole journal
}
"""Settings of the run, unless they are given."""
MOST_SEED = 1 << 31


class ChaosViolated(FreshetError):
    """A run did not survive the injected faults."""


@dataclass(frozen=True)
class FaultOptions:
    """Which faults are injected, and when."""

    minutes: Annotated[float, typer.Option(help="Minutes for which faults are injected.", min=0.01)] = 5
    seed: Annotated[
        int | None,
        typer.Option(help="Seed that determines the faults and their order; random by default.", min=0),
    ] = None
    every: Annotated[float, typer.Option(help="Seconds between two faults, on average; 0: none.", min=0)] = 4
    stopped: Annotated[float, typer.Option(help="Most seconds for which a process is stopped.", min=1)] = 20


@dataclass(frozen=True)
class UserOptions:
    """The clients of the run."""

    serve: Annotated[bool, typer.Option(help="Serve predictions, and inject faults into the server, too.")] = True
    clients: Annotated[
        bool, typer.Option("--clients", help="Send events from a device through the API, while other clients read.")
    ] = False

    def check(self) -> None:
        if self.clients and not self.serve:
            raise ConfigError(
                "--clients and --no-serve are both given; expected a server for clients to ask; leave one of them out"
            )


@grouped
def chaos(
    faults: FaultOptions,
    users: UserOptions,
    rate: Annotated[float, typer.Option(help="Clicks a second.", min=1)] = 2000,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report here.", show_default=False)] = None,
    *,
    where: PlacedRun,
    given: SettingsOptions,
) -> None:
    """Kill and stop processes of a real run at random while it trains, then check everything it guarantees.

    The run is a separate 'freshet up' on a synthetic click stream. Every few seconds one of its processes (dispatcher,
    shard, worker, server, API, nursery or the supervisor itself) is killed, or stopped for 1 to 20 seconds; first one
    of each kind, then at random. At the end the run is stopped cleanly, and 'freshet verify' checks what it left
    behind. Exits with 1 on any violation. With --clients a device sends the events to the API, each request under a key
    that it repeats on failure, a reader requests predictions and a poller the status; at the end, what they were
    promised is checked as well. With --every 0 no faults are injected; the figures of memory, descriptors and disk show
    whether they level off.

    Example: freshet chaos --minutes 10 --clients
    """
    stop = stop_on_signals()
    check_output(json_file)
    users.check()
    from infra.chaos.main import run_chaos
    from infra.chaos.report import show_report

    console = Console()
    job = job_of(faults, users, rate, new_folder(where.place), given)
    console.print(Text.assemble("run folder ", (str(job.folder), "bold"), f", seed {job.seed}"))
    report = run_chaos(job, stop, lambda line: console.print(Text(line)))
    show_findings(list(report.findings), console)
    show_report(report, console)
    if json_file is not None:
        write_whole(json_file, msgspec.json.format(msgspec.json.encode(report)).decode() + "\n")
    if report.violations:
        raise ChaosViolated(f"{len(report.violations)} violations in the run in {job.folder}; see the list above")


def new_folder(given: Path | None) -> Path:
    """Returns the given folder, or a new one; raises ConfigError if it is in use."""
    folder = given or Path("runs") / f"chaos-{datetime.now():%Y%m%d-%H%M%S}"
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"folder {folder} is not empty; expected a new one for every run of chaos; give another")
    return folder


def job_of(faults: FaultOptions, users: UserOptions, rate: float, folder: Path, given: SettingsOptions) -> "ChaosJob":
    """Builds the job from the options; the seed is drawn at random if none is given."""
    from infra.chaos.main import ChaosJob

    return ChaosJob(
        folder=folder,
        seed=secrets.randbelow(MOST_SEED) if faults.seed is None else faults.seed,
        seconds=faults.minutes * 60,
        every_seconds=faults.every,
        rate=rate,
        settings=settings_of(given, folder),
        serves=users.serve,
        most_stopped_seconds=faults.stopped,
        has_clients=users.clients,
    )


def settings_of(given: SettingsOptions, folder: Path) -> tuple[str, ...]:
    """The options of the run's commands: the given ones, and defaults for the rest; checked before anything starts."""
    settings = given.load(DEFAULTS)
    chosen = (f"{s}.{name}={getattr(getattr(settings, s), name)}" for s, names in DEFAULTS.items() for name in names)
    overrides = ["run=chaos", f"stream.folder={folder / 'log'}", *chosen, *given.chosen()]
    config = ("--config", str(given.config)) if given.config is not None else ()
    return (*config, *(part for override in overrides for part in ("--set", override)))
