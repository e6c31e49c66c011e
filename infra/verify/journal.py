"""Checks of the journal itself: it is whole, and its numbers only go up."""

from collections.abc import Iterable
from pathlib import Path

from dispatch.journal.history import JOURNAL, History, read_history
from dispatch.journal.log import read_records
from dispatch.journal.records import AnyRecord, CheckpointBegun, GenerationStarted, Redecided, StepDecided, StepDone
from infra.base.errors import FreshetError
from infra.run.figures import count
from infra.verify.finding import NotChecked, Violated, check
from ps.protocol import EMPTY_MODEL


def read_run(folder: Path) -> History:
    """The journal, for checks of its contents; raises NotChecked if it cannot be read or is empty."""
    try:
        history = read_history(folder / JOURNAL)
    except FreshetError as error:
        raise NotChecked("the journal cannot be read") from error
    if not history.step:
        raise NotChecked("the journal has no step")
    return history


@check("ranges tile")
def check_ranges(folder: Path) -> str:
    """Ranges and skips of the steps cover every partition, without gap or overlap, from where the run began."""
    history = read_history(folder / JOURNAL)  # which is strict about them
    if history.begun is None:
        raise NotChecked("the run has not begun")
    rejected = sum(step.manifest.rejected for step in history.steps)
    skipped = sum(step.manifest.skipped_events for step in history.steps)
    omitted = sum(step.manifest.omitted for step in history.steps)
    more = f", {omitted:,} omitted" if omitted else ""
    partitions = {r.partition for step in history.steps for r in (*step.manifest.ranges, *step.manifest.skipped)}
    return (
        f"{count(len(history.steps), 'step')} {since(history)} over {count(len(partitions), 'partition')}: "
        f"{trained(history):,} events trained, {rejected:,} dead, {skipped:,} skipped{more}"
    )


def since(history: History) -> str:
    """What the journal still holds: segments that no kept checkpoint needs are dropped."""
    return "from the beginning" if history.base.number == EMPTY_MODEL else f"since checkpoint {history.base.number}"


def trained(history: History) -> int:
    """Events of the steps that the journal holds."""
    return history.samples - history.base.samples


@check("numbers ascend")
def check_numbers(folder: Path) -> str:
    """Generations and steps only go up; a step is done after it was decided."""
    return follow_numbers(read_records(folder / JOURNAL))


def follow_numbers(records: Iterable[AnyRecord]) -> str:
    generation = step = checkpoint = 0
    for record in records:
        match record:
            case CheckpointBegun():
                if record.number <= checkpoint:
                    raise Violated(f"checkpoint {record.number} was begun after checkpoint {checkpoint}")
                checkpoint = record.number
                is_first = not generation
                generation, step = record.generation.number, record.step if is_first else step
            case GenerationStarted():
                if record.number <= generation:
                    raise Violated(f"generation {record.number} was started after generation {generation}")
                generation = record.number
            case StepDecided():
                if record.step != step + 1:
                    raise Violated(f"step {record.step} was decided after step {step}")
                if record.manifest.generation != generation:
                    raise Violated(f"step {record.step} is of generation {record.manifest.generation}, in {generation}")
                step = record.step
            case StepDone() if record.step > step:
                raise Violated(f"step {record.step} is done, and the last one that was decided is {step}")
            case Redecided():
                step = record.step
    return f"up to generation {generation}, checkpoint {checkpoint}, step {step}"
