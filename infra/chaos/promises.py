"""What clients of a run are promised, checked after the run."""

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from dispatch.journal.history import JOURNAL, read_history
from infra.chaos.clients import CLIENTS, AnsweredRequests, HardRequest, ReadSnapshot, SentRequest, Told, read_told
from infra.chaos.witness import Witness, left_in
from infra.run.figures import count
from infra.run.settings import read_stored
from infra.verify.finding import Finding, NotChecked, Violated, check
from ingest.errors import BrokerError, SourceError

MOST_ERRORS = 1
"""Most consecutive answers of 500 and above to one request: a client that asks twice has none."""
MOST_NAMED = 3


class ClientRecords(NamedTuple):
    """What all clients recorded, by name of the client."""

    by_client: dict[str, list[Told]]

    def sent(self) -> list[SentRequest]:
        return [each for records in self.by_client.values() for each in records if isinstance(each, SentRequest)]

    def hard(self) -> list[HardRequest]:
        return [each for records in self.by_client.values() for each in records if isinstance(each, HardRequest)]

    def answered(self) -> int:
        records = [each for records in self.by_client.values() for each in records]
        return sum(each.answered for each in records if isinstance(each, AnsweredRequests))

    def snapshots(self) -> dict[str, list[ReadSnapshot]]:
        """In the order in which each reader saw them."""
        found = {
            name: [each for each in records if isinstance(each, ReadSnapshot)]
            for name, records in self.by_client.items()
        }
        return {name: snapshots for name, snapshots in found.items() if snapshots}


def read_records_of(folder: Path) -> ClientRecords:
    return ClientRecords({file.stem: read_told(file) for file in sorted((folder / CLIENTS).glob("*.jsonl"))})


def check_promises(folder: Path, witness: Witness) -> list[Finding]:
    """Checks all of them; the run must have ended, and everything observed of it must be complete."""
    records = read_records_of(folder)
    return [
        check_accepted(records, witness),
        check_trained(folder, records, witness),
        check_verdicts(records, witness),
        check_order(folder, records),
        check_errors(records),
    ]


@check("accepted events in the log once")
def check_accepted(records: ClientRecords, witness: Witness) -> str:
    """Every request that was answered is in the log as a whole, and nothing of any is there twice."""
    tagged = witness.tagged
    sent = records.sent()
    if witness.failure:
        raise NotChecked(f"the stream cannot be read: {witness.failure}")
    if tagged.unread:
        raise NotChecked(f"retention had removed {count(tagged.unread, 'record')} before they were looked at")
    if not sent:
        raise NotChecked("no device has sent anything")
    first = [each for each in sent if not each.repeated]
    answered = {each.request: each.accepted for each in sent if each.accepted}
    if wrong := [each for each in sent if each.accepted not in (0, each.events)]:
        raise Violated(f"{count(len(wrong), 'request')} accepted in part; the first: {wrong[0]}")
    if tagged.twice:
        raise Violated(f"{count(tagged.twice, 'record')} of requests are in the log more than once")
    if lacking := [request for request in answered if not tagged.is_whole(request)]:
        raise Violated(
            f"{count(len(lacking), 'request')} answered as accepted and not whole in the log: {lacking[:MOST_NAMED]}"
        )
    if strange := tagged.parts.keys() - {each.request for each in sent}:
        raise Violated(f"the log has {count(len(strange), 'request')} that no device has sent")
    again = len(sent) - len(first)
    unanswered = len(first) - len(answered)
    return (
        f"{count(sum(answered.values()), 'event')} of {count(len(answered), 'request')} accepted, each there once; "
        f"{again:,} sent again although answered, {unanswered:,} without an answer in the end"
    )


@check("accepted events trained once")
def check_trained(folder: Path, records: ClientRecords, witness: Witness) -> str:
    """As many samples were trained as the log had events up to where the run was stopped."""
    if witness.failure or witness.tagged.unread:
        raise NotChecked("the stream could not be read as a whole")
    history = read_history(folder / JOURNAL)
    settings = read_stored(folder)
    tagged = witness.tagged
    try:
        left = left_in(settings, dict(history.positions))
    except (SourceError, BrokerError) as error:
        raise NotChecked(f"the stream cannot be read: {error}") from error
    rejected = sum(step.manifest.rejected for step in history.steps)
    skipped = sum(step.manifest.skipped_events for step in history.steps)
    taken = tagged.total + tagged.others - left
    accepted = sum(each.accepted for each in records.sent() if not each.repeated)
    omitted = sum(step.manifest.omitted for step in history.steps)
    if taken != history.samples + rejected + skipped + omitted:
        raise Violated(
            f"{taken:,} events were taken from the log, {history.samples:,} samples trained, {rejected:,} rejected, "
            f"{skipped:,} skipped, {omitted:,} omitted; expected every event once"
        )
    summary = f"accepted {accepted:,}, in the log {tagged.total:,}: {history.samples:,} trained once each"
    more = f", {rejected:,} dead, {skipped:,} skipped" if rejected or skipped else ""
    return f"{summary}{more}, {left:,} left when it was stopped"


@check("answers of good snapshots")
def check_verdicts(records: ClientRecords, witness: Witness) -> str:
    """No answer came from a snapshot that was held back."""
    seen = {snapshot.checkpoint: snapshot for snapshots in records.snapshots().values() for snapshot in snapshots}
    if not seen:
        raise NotChecked("no prediction was answered")
    unknown = [checkpoint for checkpoint in seen if checkpoint not in witness.checkpoints]
    known = {checkpoint: witness.checkpoints[checkpoint] for checkpoint in seen if checkpoint in witness.checkpoints}
    if held := {
        checkpoint: manifest.verdict.reasons for checkpoint, manifest in known.items() if not manifest.verdict.is_good
    }:
        raise Violated(
            f"{count(len(held), 'snapshot')} held back and answered from: {dict(list(held.items())[:MOST_NAMED])}"
        )
    mixed = [
        checkpoint
        for checkpoint, manifest in known.items()
        if (manifest.timeline, manifest.step) != (seen[checkpoint].timeline, seen[checkpoint].step)
    ]
    if mixed:
        raise Violated(
            f"answers name another line or step than the checkpoints {mixed[:MOST_NAMED]} that they come from"
        )
    answers = sum(snapshot.answers for snapshots in records.snapshots().values() for snapshot in snapshots)
    all_held = sum(not manifest.verdict.is_good for manifest in witness.checkpoints.values())
    return (
        f"{count(answers, 'answer')} of {count(len(seen), 'snapshot')}, {len(known):,} of them good, {len(unknown):,} "
        f"not checked; {all_held:,} of {len(witness.checkpoints):,} checkpoints that were seen are held back"
    )


@check("snapshots go forward")
def check_order(folder: Path, records: ClientRecords) -> str:
    """No client was answered from an older snapshot than before."""
    if not records.snapshots():
        raise NotChecked("no prediction was answered")
    if (processes := read_stored(folder).serving.processes) > 1:
        raise NotChecked(f"{processes} servers share a port, and each follows by itself")
    for name, snapshots in records.snapshots().items():
        for before, after in pairwise(snapshots):
            if (after.timeline, after.step) < (before.timeline, before.step):
                raise Violated(f"{name} was answered from {after} after {before}")
    seen = sum(map(len, records.snapshots().values()))
    return f"{count(seen, 'snapshot')} for {count(len(records.snapshots()), 'client')}"


@check("no 5xx twice")
def check_errors(records: ClientRecords) -> str:
    """No request was answered with 500 or above two times in a row."""
    hard = records.hard()
    if bad := [each for each in hard if each.most_errors > MOST_ERRORS]:
        worst = max(bad, key=lambda each: each.most_errors)
        raise Violated(f"{count(len(bad), 'request')} answered with 5xx more than once in a row; the worst: {worst}")
    if refused := [each for each in hard if each.statuses and 400 <= each.statuses[-1] < 500]:
        raise Violated(f"{count(len(refused), 'request')} refused; the first: {refused[0]}")
    once = sum(each.most_errors for each in hard)
    lost = sum(each.lost for each in hard)
    longest = max((each.seconds for each in hard), default=0.0)
    return (
        f"{count(records.answered(), 'request')} answered; {len(hard):,} not at the first try: {once:,} had one 5xx, "
        f"{lost:,} tries had no answer; the longest took {longest:.1f} s"
    )
