"""``freshet restore``: a run's folder made anew, where the machine that had it is lost."""

from typing import Annotated

import typer

from infra.cli.options import PlacedRun, SettingsOptions, grouped
from infra.run.folder import RUNS, as_path


@grouped
def restore(
    topic: Annotated[str, typer.Argument(help="Topic with the copy of the journal, see dispatch.journal_topic.")],
    *,
    where: PlacedRun,
    given: SettingsOptions,
) -> None:
    """Make a run's folder from the copy of its journal on Kafka, on a machine that never had it.

    The run goes on with its own settings, unless others are given. Not in the copy are secrets, keys, and the API's
    database. From then on the new folder may continue the run, and the old one no more: its dispatcher, should it still
    be there, can record nothing once the new one has started.

    Example: freshet restore clicks-journal --run clicks --set kafka.servers=kafka:9092
    """
    from infra.run.restore import restore_run

    folder = where.place or RUNS / topic
    restored = restore_run(topic, folder, given.config, given.chosen())
    typer.echo(f"run {restored.run!r} is in {folder}: {restored.frames:,} frames of its journal")
    if restored.missing:
        typer.echo(f"not in the copy, and to be given with --set where needed: {', '.join(restored.missing)}")
    typer.echo(f"'freshet up --run {as_path(folder)}' resumes it")
