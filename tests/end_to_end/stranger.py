"""Another user of the machine tries to pause a run: python -m tests.end_to_end.stranger FOLDER RUN ENDPOINT.

It prints what came of it as JSON: first as a command does it, which finds the address in the run's folder, then with
the address that it was told.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from dispatch.commands.client import command
from infra.base.errors import FreshetError
from infra.run.agent.running import RunningRun

NOBODY = 65534


def become_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def pause(find_endpoint: Callable[[], str], run: str) -> str:
    """The answer, or the reason why there is none."""
    try:
        return command(find_endpoint(), run, "pause").text
    except FreshetError as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    folder, run, endpoint = sys.argv[1:]
    become_nobody()
    told = [pause(RunningRun(run, Path(folder), None).control, run), pause(lambda: endpoint, run)]
    sys.stdout.write(json.dumps(told))
