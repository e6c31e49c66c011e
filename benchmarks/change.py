"""How soon the own choice follows a change in mid-run: of a link, of a processor, or of who is there.

One run in network namespaces, with an elastic policy that measures links for itself. While it trains, the kernel gives
a link another speed; or a worker's process gets a share of its processor only (it is stopped and continued, many times
a second); or one more worker is started and joins. The run is told nothing.

Between two changes is a phase. Its settled set is the one that trained most of the steps of its last third. The choice
has followed when steps take about as long as they do in that third. What else was tried is told by the number of sets.
"""

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Literal

import msgspec
import psutil
from rich.console import Console

from benchmarks.clicks import write_topic
from benchmarks.regret import StaySummary, is_own_choice, stays_of
from benchmarks.train import (
    Experiment,
    Variant,
    check_variant,
    extras_of,
    in_namespaces,
    parse_variants,
    run_to_its_end,
    samples_of,
    settings_of,
)
from dispatch.journal.history import JOURNAL
from dispatch.journal.log import read_whole
from dispatch.journal.records import AnyRecord, StepDone, StepFigures
from dispatch.progress.status import Status
from infra.base.errors import ConfigError, FreshetError
from infra.base.link_gbit import LinkGbit
from infra.base.parts import COMMAND
from infra.base.process import Stop
from infra.base.run_folder import dispatcher_endpoint
from infra.run.display import Display
from infra.run.network import Network
from infra.verify.leftovers import processes_of

JOIN_WORD = 0
"""Which of the dispatcher's endpoints workers join."""
SLICE_SECONDS = 0.05
"""A processor that is taken away is given back once in this time."""
LASTING = 8
"""Steps that must take as long as later ones before a choice counts as made."""
ABOUT = 1.25
"""Factor up to which a time is about the same as another."""
FIRST_STEPS = 60
"""Steps after a change whose mean is shown: a choice should have followed by then."""


class Change(msgspec.Struct, frozen=True):
    """Something that happens to a worker while the run trains."""

    step: int
    """It happens once so many steps are trained."""
    kind: Literal["link", "processor", "join"]
    worker: int
    value: float = 0.0
    """Gbit/s of a link, or the share of its time that a process may run; a worker that joins has none."""

    @property
    def text(self) -> str:
        given = {"link": f" at {self.value:g} Gbit/s", "processor": f" runs {self.value:.0%} of the time"}
        return f"{self.kind} of worker {self.worker}{given[self.kind]}" if self.value else f"worker {self.worker} joins"


class ChangePhase(msgspec.Struct, frozen=True):
    """The steps between two changes."""

    after: str
    """What happened before them."""
    step: int
    """First step that was completed afterwards."""
    steps: int
    settled: list[str]
    """The set that trained most of the steps of the last third."""
    followed_after: int
    """Steps from the change until steps took about as long as in the last third, with whatever set."""
    sets: list[StaySummary]
    """Sets that were taken into use in this phase, in order."""
    before_ms: float | None
    """Median of the steps before the change; None at the start."""
    first_ms: float
    """Mean of the first steps after it, including those that waited for something to be noticed."""
    settled_ms: float
    """Median of the last third."""


def parse_changes(texts: Sequence[str], experiment: Experiment) -> list[Change]:
    """link-WORKER=GBIT@STEP, processor-WORKER=SHARE@STEP or join-WORKER@STEP; raises ConfigError."""
    changes = sorted((_change(text, experiment.workers) for text in texts), key=lambda change: change.step)
    joining = sorted(change.worker for change in changes if change.kind == "join")
    if not changes or joining != list(range(experiment.workers - len(joining), experiment.workers)):
        raise ConfigError(
            f"changes {', '.join(texts)} make workers {joining} of {experiment.workers} join; expected at least one "
            "change, and that those who join are the last ones, each once; correct --change"
        )
    if len(joining) == experiment.workers or changes[-1].step >= experiment.steps:
        raise ConfigError(
            f"changes {', '.join(texts)} leave nobody to begin with, or come after the last of {experiment.steps} "
            "steps; expected a worker that is there from the start, and steps after each change; correct --change"
        )
    return changes


def _change(text: str, workers: int) -> Change:
    with suppress(ValueError, msgspec.ValidationError):
        what, step = text.split("@")
        named, value = what.split("=") if "=" in what else (what, "0")
        kind, worker = named.split("-")
        change = msgspec.convert(
            {"step": int(step), "kind": kind, "worker": int(worker), "value": float(value)}, Change
        )
        most = 1.0 if kind == "processor" else float("inf")
        if change.step > 0 and 0 <= change.worker < workers and (kind == "join" or 0 < change.value <= most):
            return change
    raise ConfigError(
        f"a change {text!r}; expected link-WORKER=GBIT@STEP, processor-WORKER=SHARE@STEP up to 1, or join-WORKER@STEP, "
        f"with a worker of 0 to {workers - 1}; correct --change"
    )


def own_choice(policy: str) -> Variant:
    """The policy whose choice is measured; raises ConfigError unless it chooses for itself."""
    own, *others = parse_variants(policy)
    if others or not is_own_choice(own):
        raise ConfigError(
            f"--policy {policy!r} is no own choice, or several; expected one policy that ends in :elastic and has no "
            "number of workers, as joint:elastic; correct --policy"
        )
    return own


def run_change(
    folder: Path, experiment: Experiment, own: Variant, changes: Sequence[Change], stop: Stop, console: Console
) -> list[ChangePhase]:
    """One phase for the time before the first change, and one after each."""
    with in_namespaces(folder, replace(experiment, is_told_links=False)) as (network, behind):
        present = experiment.workers - sum(change.kind == "join" for change in changes)
        first = own.on(behind.with_links(behind.links[:present]))
        check_variant(folder, first, own)
        settings = settings_of(folder, first, own.policy, "run")
        samples = write_topic(settings.stream, samples_of(first, settings.event_schema))
        steps = min(first.steps, samples // first.whole_batch)
        with RunWorld(settings.folder, network) as world:
            display = ChangingDisplay(console, world, changes)
            run_to_its_end(settings, extras_of(first, steps, network), steps, stop, display)
    if len(display.happened) < len(changes):
        late = changes[len(display.happened)]
        raise FreshetError(
            f"the run ended after {steps} steps before this happened: {late.text}; expected it after step {late.step}; "
            "raise --steps: changes are made a few times a second"
        )
    return read_whole(settings.folder / JOURNAL, lambda records: phases_of(list(records), changes, display.happened))


class RunWorld:
    """What a run depends on, and can be changed from outside while it trains."""

    def __init__(self, folder: Path, network: Network) -> None:
        self._folder = folder
        self._network = network
        self._undo = ExitStack()

    def __enter__(self) -> "RunWorld":
        return self

    def __exit__(self, *raised: object) -> None:
        self._undo.close()

    def change(self, change: Change) -> None:
        name = f"worker-{change.worker}"
        if change.kind == "link":
            self._network.shape(change.worker, LinkGbit.of(change.value))
        elif change.kind == "processor":
            self._undo.enter_context(throttled(self._process(name), change.value))
        else:
            self._undo.enter_context(self._joining(name, change.worker))

    def _process(self, name: str) -> psutil.Process:
        found = [process for other, process in processes_of(self._folder) if other == name]
        if not found:
            raise FreshetError(f"{name} is not there to be slowed down; expected it to train; see the messages above")
        return found[0]

    @contextmanager
    def _joining(self, name: str, number: int) -> Iterator[None]:
        endpoint = dispatcher_endpoint(self._folder, JOIN_WORD)
        command = [*COMMAND, "worker", "--run", str(self._folder), "--name", name]
        argv = [*self._network.inside(number), *command, "--dispatcher", str(endpoint)]
        with (self._folder / f"{name}.out").open("wb") as output, subprocess.Popen(argv, stderr=output) as process:
            try:
                yield
            finally:
                process.terminate()


@contextmanager
def throttled(process: psutil.Process, share: float) -> Iterator[None]:
    """Inside, the process runs that share of the time only."""
    ending = threading.Event()

    def alternate() -> None:
        with suppress(psutil.NoSuchProcess):  # it has ended, with the run or before
            while not ending.wait(SLICE_SECONDS * share):
                process.suspend()
                time.sleep(SLICE_SECONDS * (1 - share))
                process.resume()

    thread = threading.Thread(target=alternate)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


class ChangingDisplay(Display):
    """Shows a run, and lets changes happen when their step has come."""

    def __init__(self, console: Console, world: RunWorld, changes: Sequence[Change]) -> None:
        super().__init__(console)
        self._world = world
        self._coming = list(changes)
        self._changed_at = 0
        """Step of the last change: there is at least one step between two of them."""
        self.happened: list[float] = []
        """When each change happened, in seconds since 1970."""

    def show(self, status: Status, awaited: Sequence[str] = ()) -> None:
        if self._coming and status.steps >= max(self._coming[0].step, self._changed_at + 1):
            change = self._coming.pop(0)
            self._world.change(change)
            self._changed_at = status.steps
            self.happened.append(time.time())
            self.print_line(f"step {status.steps}: {change.text}")
        super().show(status, awaited)


def phases_of(records: Sequence[AnyRecord], changes: Sequence[Change], happened: Sequence[float]) -> list[ChangePhase]:
    """happened: when each change did, in seconds since 1970."""
    done = {record.step: record.figures for record in records if isinstance(record, StepDone) and record.figures}
    stays = stays_of(records)
    firsts = first_steps(done, happened)
    ends = [*firsts[1:], max(done) + 1]
    names = ["the start", *(change.text for change in changes)]
    return [
        _phase(name, [k for k in range(first, end) if k in done], done, stays)
        for name, first, end in zip(names, firsts, ends, strict=True)
    ]


def first_steps(done: Mapping[int, StepFigures], happened: Sequence[float]) -> list[int]:
    """The first step of the run, and the first after each change. Each phase has one step at least: the display may be
    told of so many steps at once that it lets two changes happen before another step is done.
    """
    steps = sorted(done)
    if len(steps) <= len(happened):
        raise FreshetError(
            f"{len(steps)} steps were trained while {len(happened)} changes happened; expected one step at least "
            "between two of them; raise --steps"
        )
    places = [0]
    for number, at in enumerate(happened):
        before = sum(done[step].at_seconds <= at for step in steps)
        places.append(min(max(before, places[-1] + 1), len(steps) - len(happened) + number))
    return [steps[place] for place in places]


def _phase(name: str, steps: list[int], done: Mapping[int, StepFigures], stays: Sequence[StaySummary]) -> ChangePhase:
    def members(step: int) -> tuple[str, ...]:
        return tuple(next((stay.members for stay in reversed(stays) if stay.step <= step), ()))

    last = steps[-(-2 * len(steps) // 3) :] or steps
    settled = Counter(map(members, last)).most_common(1)[0][0]
    settled_seconds = median(done[k].seconds for k in last)
    followed = next((at for at in range(len(steps)) if _lasts(steps[at:], done, settled_seconds)), len(steps))
    before = [done[k].seconds for k in range(steps[0] - FIRST_STEPS, steps[0]) if k in done]
    return ChangePhase(
        after=name,
        step=steps[0],
        steps=len(steps),
        settled=list(settled),
        followed_after=followed,
        sets=[stay for stay in stays if steps[0] <= stay.step <= steps[-1]],
        before_ms=1000 * median(before) if before else None,
        first_ms=1000 * fmean(done[k].seconds for k in steps[:FIRST_STEPS]),
        settled_ms=1000 * settled_seconds,
    )


def _lasts(steps: Sequence[int], done: Mapping[int, StepFigures], seconds: float) -> bool:
    """Whether the next few steps took at most about so long, the first of them and most of the others."""
    took = [done[k].seconds for k in steps[:LASTING]]
    return took[0] <= ABOUT * seconds and median(took) <= ABOUT * seconds
