"""Records what the pilot reads on this machine, with another program on the CPU for a while or without.

    python3 -m tests.dispatch.alpha.record OUT.json --seconds 160 --load-from 20 --load-to 90 --processes 1 --core 0

Tests play the recordings back through the controller (tests/dispatch/alpha/test_traces.py). On a machine that others
use as well, a core of its own (``--core``) and a session of high priority (``setsid``, with -20 in its autogroup) leave
just the load that was asked for; the pressure of the whole machine is recorded as it is.
"""

import argparse
import os
from pathlib import Path

from dispatch.alpha.pilot import AlphaPilot
from tests.dispatch.alpha.loop import Load, Looped, loaded
from tests.dispatch.alpha.trace import Reading, Trace, write_trace

BUSY_LOOP = "while True: pass"


def record(policy: str, busy_seconds: float, seconds: float, load_from: float, load_to: float, processes: int) -> Trace:
    pilot = AlphaPilot()
    looped = Looped(policy, "cpu", pilot, busy_seconds)
    readings: list[Reading] = []
    for at, _, _ in loaded(looped, Load(BUSY_LOOP, processes), seconds, load_from, load_to):
        looped.alpha = looped.spec.needs.alpha  # what is read must not depend on what the controller does
        if pilot.last is not None and (not readings or pilot.last is not readings[-1].read):
            readings.append(Reading(at, pilot.last))
    what = f"{policy} on the CPU, a step of {busy_seconds * 1000:g} ms; busy loops beside it: {processes}"
    return Trace(what, True, "cpu", looped.spec.needs.alpha, load_from, load_to, readings)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--policy", default="joint")
    parser.add_argument("--busy-ms", type=float, default=40.0)
    parser.add_argument("--seconds", type=float, default=160.0)
    parser.add_argument("--load-from", type=float, default=0.0)
    parser.add_argument("--load-to", type=float, default=0.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--core", type=int)
    given = parser.parse_args()
    if given.core is not None:
        os.sched_setaffinity(0, {given.core})
    times = given.seconds, given.load_from, given.load_to
    trace = record(given.policy, given.busy_ms / 1000, *times, given.processes)
    write_trace(trace, given.out)


if __name__ == "__main__":
    main()
