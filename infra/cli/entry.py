"""The entry point of the command: installs signal handlers first, and only then imports anything slow.

A command that drains turns SIGTERM, SIGINT and SIGHUP into a request to stop, from its first moment on. It survives the
loss of its output: a closed terminal or pipe does not end it. Every other command ends at Ctrl-C with one line and exit
code 130. A benchmark also ends at SIGTERM and SIGHUP, together with the processes that it has started.

Most processes of a run do not start here: a nursery, which does, forks them, and they continue as if they had.
"""

import gc
import sys
from collections.abc import Sequence

from infra.base.output import keep_output_harmless
from infra.base.process import INTERRUPTED, end_process, interrupt_on_signals, stop_on_signals

DRAINING = (
    ("demo",),
    ("up",),
    ("train",),
    ("produce",),
    ("dispatcher",),
    ("worker",),
    ("ps",),
    ("api",),
    ("serve",),
    ("broker",),
    ("agent",),
    ("replay",),
    ("verify",),
    ("chaos",),
    ("bench", "quality"),
    ("bench", "train"),
)

BENCHMARK = "bench"
NURSERY = "nursery"


def main() -> None:
    """The command ``freshet``."""
    if sys.argv[1:2] == [NURSERY]:
        from infra.run.supervision.forking import run_nursery

        if not run_nursery(int(sys.argv[2])):
            return
    if drains(sys.argv[1:]):
        stop_on_signals()
        keep_output_harmless()
    elif sys.argv[1:2] == [BENCHMARK]:
        interrupt_on_signals()
    try:
        gc.disable()  # nothing that is imported becomes garbage
        from infra.cli.main import run_command

        gc.enable()
        run_command()
    except SystemExit as ended:  # how every command ends
        if not isinstance(ended.code, int):
            raise
        end_process(ended.code)
    except KeyboardInterrupt:  # in the middle of an import
        sys.stderr.write("freshet: interrupted\n")
        sys.exit(INTERRUPTED)


def drains(arguments: Sequence[str]) -> bool:
    """Whether the command in these arguments drains when it is asked to stop."""
    return any(tuple(arguments[: len(command)]) == command for command in DRAINING)


if __name__ == "__main__":
    main()
