"""The dispatcher's side of the stream: batches come in, each is put on record before anyone trains it.

A batch's manifest is appended durably, and only then are its dead letters written. A crash in between loses nothing:
the manifest says how to form the batch again, and a letter is written once, however often its manifest is replayed.
"""

from contextlib import closing

import structlog

from dispatch.errors import RunExists
from dispatch.job import DispatchJob
from dispatch.progress.status import EventCounts, FieldsStatus
from infra.process import Stop
from infra.telemetry import Meter
from ingest.batches.absent import FieldWatch
from ingest.batches.batch import Batch
from ingest.batches.job import LoaderJob
from ingest.batches.loader import Loader
from ingest.batches.manifest import Manifest, ManifestLog
from ingest.errors import SinkUnavailable
from ingest.letters.letter import DeadLetters
from ingest.streams.source import Source


class Intake:
    """Batches of the stream in order, their manifests and their dead letters."""

    def __init__(self, job: DispatchJob, source: Source, letters: DeadLetters, meter: Meter) -> None:
        self.step = 0
        """number of the newest step"""
        self._dead_letters = self._skipped = 0
        self._run = job.run
        self._meter = meter
        self._log = structlog.get_logger()
        self._letters = letters
        self._manifests = open_manifests(job)
        self._loader = open_loader(job, source)
        self._watch = FieldWatch(job.schema, job.stream.absent_window, job.stream.on_absent_field)

    @property
    def has_ended(self) -> bool:
        """Whether the last batch has been handed out."""
        return self._loader.ended

    def events(self) -> EventCounts:
        """The events that were not trained."""
        return EventCounts(lag=self._loader.lag(), dead_letters=self._dead_letters, skipped=self._skipped)

    def fields(self) -> FieldsStatus:
        """Which fields the events handed out have."""
        absence = self._watch.absence
        return FieldsStatus(present=self._watch.shares(), absent=absence.fields, unknown=absence.unknown)

    def next_batch(self, timeout_seconds: float) -> Batch | None:
        """The next batch, or None if there is none yet; AbsentField if its events lack a field and that is to stop."""
        batch = self._loader.next(timeout_seconds)
        if batch is not None:
            self._watch.add(len(batch.samples), batch.present_S, batch.examples)
        return batch

    def append_manifest(self, batch: Batch, generation: int) -> int:
        """Gives the batch its step and writes both down; durable when this returns."""
        self.step += 1
        samples, rejected = len(batch.samples), len(batch.dead_letters)
        left_out = batch.skipped, batch.skipped_events
        self._manifests.append(Manifest(self._run, generation, self.step, batch.ranges, samples, rejected, *left_out))
        if batch.skipped:
            self._skipped += batch.skipped_events
            self._meter.count("skipped", batch.skipped_events)
            self._log.warning("events left out", events=batch.skipped_events, ranges=len(batch.skipped))
        return self.step

    def write_dead_letters(self, batch: Batch, stop: Stop) -> bool:
        """Returns True once they are durable, False while the broker that takes them is away.

        After a request to stop a missing broker is an error: a replay of the manifest will write the letters.
        """
        try:
            self._letters.append(batch.dead_letters)
        except SinkUnavailable:
            if stop.requested:
                raise
            return False
        self._dead_letters += len(batch.dead_letters)
        self._meter.count("dead_letters", len(batch.dead_letters))
        return True

    def close(self) -> None:
        with closing(self._manifests):  # closed even if the loader fails to commit its positions
            self._loader.close()


def open_manifests(job: DispatchJob) -> ManifestLog:
    """Opens the run's manifests; raises RunExists if the folder holds steps already."""
    manifests = ManifestLog(job.folder / "manifests.log")
    if manifests.last is not None:
        manifests.close()
        raise RunExists(
            f"{manifests.path} already holds {manifests.last.step} steps of run {manifests.last.run!r}; expected a "
            "folder without steps, since a run without a checkpoint cannot be continued; give another folder with "
            "--folder or FRESHET_FOLDER"
        )
    return manifests


def open_loader(job: DispatchJob, source: Source) -> Loader:
    """Starts reading ahead."""
    wanted = LoaderJob(
        job.schema,
        job.stream.batch,
        start=job.start,
        linger_seconds=job.stream.linger_seconds,
        prefetch=job.stream.prefetch,
        limit=job.samples,
        stop_at_end=job.stop_at_end,
        read_bytes=job.stream.read_bytes,
        on_out_of_range=job.stream.on_out_of_range,
        look_at=job.stream.absent_window if job.stream.on_absent_field == "stop" else None,
        skip_above=job.stream.skip_above,
    )
    return Loader(source, wanted)
