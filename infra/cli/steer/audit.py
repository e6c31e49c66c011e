"""``freshet audit``: who changed what over the API, and who was denied."""

from typing import Annotated

import typer

from infra.cli.options import grouped
from infra.cli.steer.connection import ApiOptions, AsJson
from infra.cli.steer.output import print_json, show_table, when


@grouped
def audit(
    limit: Annotated[int, typer.Option(help="Number of entries, newest first.", min=1, max=10_000)] = 50,
    as_json: AsJson = False,
    *,
    where: ApiOptions,
) -> None:
    """Show who changed what over the API, and who was denied; for one run with --run.

    Example: freshet audit --limit 20
    """
    with where.connect() as api:
        query = {"run": api.named} if api.named else {}
        found = api.client.items("/v1/audit", limit, **query)
    if as_json:
        print_json(found)
        return
    rows = [(when(each["at"]), each["actor"], each["action"], each["run"], each["status"]) for each in found]
    show_table(("at", "who", "what", "run", "status"), rows)
