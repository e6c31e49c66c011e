"""``freshet plan``: estimates how long a step would take on sets of workers, without starting them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from infra.base.errors import ConfigError
from infra.base.process import check_output, write_whole
from infra.cli.options import RunOptions, grouped

if TYPE_CHECKING:  # loads kernels
    from infra.run.settings import Settings
    from ingest.samples import Samples

Form = Literal["jsonl", "criteo", "avazu", "movielens"]
OWN_CHOICE = "joint:elastic"
USUAL_GBIT = 1.0
"""Speed of every link, if none is given."""
WIDTH = 120
"""Width of the table if the output is not a terminal."""


@dataclass(frozen=True)
class Events:
    """The sample of events that the plan is based on."""

    file: Annotated[Path | None, typer.Argument(help="File of events; synthetic if none is given.")] = None
    dataset: Annotated[Form, typer.Option(help="Format of the file.")] = "jsonl"
    batches: Annotated[int, typer.Option(help="Most batches to examine.", min=4)] = 200
    seconds: Annotated[float, typer.Option(help="Approximate time for all simulations, in seconds.", min=0.1)] = 5.0


@dataclass(frozen=True)
class Machines:
    """The machines to plan for."""

    links: Annotated[str, typer.Option(help="Gbit/s of each worker's link; as in the settings if empty.")] = ""
    devices: Annotated[
        int | None, typer.Option(help="Processors or GPUs of all workers together; one each by default.", min=1)
    ] = None
    compute_ms: Annotated[
        float | None, typer.Option(help="Milliseconds per 1,000 samples; measured here by default.", min=0)
    ] = None


@grouped
def plan(
    events: Events,
    machines: Machines,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the plan here.", show_default=False)] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Plot when several workers are worth using, into this file.", show_default=False),
    ] = None,
    *,
    given: RunOptions,
) -> None:
    """Estimate how long a step would take, and what it would move, on one worker, the fastest few and all; trains
    nothing.

    Decisions are those of a live run over the batches of the sample; compute is measured on this machine or given. With
    --run the sample is the topic of that run, with its settings.

    Example: freshet plan clicks.jsonl --set stream.schema_name=mine.toml --links 0.2,0.2,0.02 --plot plan.svg
    """
    check_output(json_file)
    from infra.plan.compute import given_compute
    from infra.plan.picture import check_picture, plot_plan
    from infra.plan.plan import make_plan, plan_job
    from infra.plan.report import plan_lines, plan_table

    check_picture(plot)
    settings = _settings(events, machines, given)
    batches = _sample(events, given, settings)
    compute = None if machines.compute_ms is None else given_compute(machines.compute_ms)
    job = plan_job(settings, batches, compute, machines.devices)
    policy = settings.dispatch.policy
    made = make_plan(job, settings.dispatch.links_gbit, policy, settings.dispatch.share_bounds, events.seconds)
    console = Console(width=None if Console().is_terminal else WIDTH)
    console.print(plan_table(made.result))
    for line in plan_lines(made.result):
        console.print(Text(line))
    if settings.dispatch.uplinks_gbit:
        console.print(Text("dispatch.uplinks_gbit is not in this plan: uplinks count as fast as downlinks"))
    if json_file is not None:
        write_whole(json_file, msgspec.json.format(msgspec.json.encode(made.result)).decode() + "\n")
    if plot is not None:
        plot_plan(made, job, plot)


def _settings(events: Events, machines: Machines, given: RunOptions) -> "Settings":
    """The settings, with the default policy unless one is set, and a link for every worker."""
    from benchmarks.simulated.workload import even_links, parse_links

    if given.named and events.file is not None:
        raise ConfigError(
            f"--run {given.named} and the file {events.file} are both given; expected the topic of the run or a file; "
            "leave one out"
        )
    defaults: dict[str, Any] = {"dispatch": {"policy": OWN_CHOICE}}
    if events.file is not None and events.dataset != "jsonl":
        defaults["stream"] = {"schema_name": events.dataset}
    settings = given.load(defaults)
    if machines.links.strip():
        return _with_links(settings, even_links(parse_links(machines.links, len(machines.links.split(",")))))
    dispatch = settings.dispatch
    return settings if dispatch.links_gbit else _with_links(settings, (USUAL_GBIT,) * dispatch.workers)


def _with_links(settings: "Settings", links_gbit: tuple[float, ...]) -> "Settings":
    """The same settings with one worker per link."""
    dispatch = settings.dispatch.model_copy(
        update={"links_gbit": links_gbit, "uplinks_gbit": (), "workers": len(links_gbit)}
    )
    return settings.model_copy(update={"dispatch": dispatch})


def _sample(events: Events, given: RunOptions, settings: "Settings") -> "list[Samples]":
    from infra.plan.sample import file_batches, made_up_batches, topic_batches

    if given.named:
        return topic_batches(settings, events.batches)
    if events.file is not None:
        return file_batches(settings, events.file, events.dataset, events.batches)
    return made_up_batches(settings, events.batches)
