"""The batch: samples of one step with the ranges they came from, and the dead letters found among them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from infra.base.distinct import BatchKeys, number_keys
from ingest.batches.counting import count_present
from ingest.codec.decoder import Decoded, Reject, join_decoded
from ingest.letters.letter import DeadLetter
from ingest.samples import Samples, join_samples, no_samples
from ingest.schema import Schema
from ingest.streams.position import Range


@dataclass(frozen=True, eq=False)
class Batch:
    """The samples of one step, by partition, then position. It may consist of dead letters only, without a sample."""

    ranges: tuple[Range, ...]
    samples: Samples
    keys: BatchKeys
    """The keys of the samples, each distinct one once."""
    dead_letters: tuple[DeadLetter, ...]
    present_S: NDArray[np.int64]
    """Samples that have a value, per field of the schema."""
    arrived_B: NDArray[np.int64]
    """When the record of each sample was appended to the log, in unix milliseconds; in a Kafka topic with timestamps of
    type CreateTime it is the producer's own time.
    """
    examples: tuple[bytes, ...] = ()
    """Some recently read records, unchanged."""
    skipped: tuple[Range, ...] = ()
    """Ranges that were skipped since the batch before: by the lag policy, or because retention removed them."""
    skipped_events: int = 0
    """Events in them; estimated for packed records that were never read."""
    omitted: int = 0
    """Negatives in the ranges that down-sampling has left out."""

    @property
    def events(self) -> int:
        """Number of good and bad events, trained or not."""
        return len(self.samples) + len(self.dead_letters) + self.omitted


@dataclass(frozen=True, eq=False)
class BatchParts:
    """What a batch will consist of, before it is joined."""

    taken: tuple[tuple[Range, tuple[Decoded, ...]], ...]
    """The decoded events of each partition, in one piece or several."""
    skipped: tuple[Range, ...]
    skipped_events: int
    examples: tuple[bytes, ...]

    @property
    def samples(self) -> int:
        return sum(len(part) for _, parts in self.taken for part in parts)

    @property
    def events(self) -> int:
        """Number of good and bad events, trained or not."""
        others = (len(part.rejects) + len(part.omitted_at) for _, parts in self.taken for part in parts)
        return self.samples + sum(others)

    def join(self, schema: Schema) -> Batch:
        return replace(
            join_batch([(read, join_decoded(parts)) for read, parts in self.taken], schema),
            skipped=self.skipped,
            skipped_events=self.skipped_events,
            examples=self.examples,
        )


def join_batch(taken: Iterable[tuple[Range, Decoded]], schema: Schema) -> Batch:
    """Builds one batch from the decoded events of several partitions, in the order of partitions."""
    parts = sorted(taken, key=lambda part: part[0].partition)
    letters = tuple(_dead_letter(r.partition, bad) for r, decoded in parts for bad in decoded.rejects)
    samples = [decoded.samples for _, decoded in parts if len(decoded)]
    joined = join_samples(samples) if samples else no_samples(schema.fields, schema.dense)
    arrived = [decoded.arrived_B for _, decoded in parts if len(decoded)]
    arrived_B = np.concatenate(arrived) if arrived else np.empty(0, np.int64)
    present_S = count_present(joined, schema)
    return Batch(
        tuple(r for r, _ in parts),
        joined,
        number_keys(joined.keys_BF),
        letters,
        present_S,
        arrived_B,
        omitted=sum(len(decoded.omitted_at) for _, decoded in parts),
    )


def _dead_letter(partition: int, bad: Reject) -> DeadLetter:
    is_truncated = bad.size > len(bad.payload)
    return DeadLetter(
        partition=partition,
        offset=bad.position.offset,
        index=bad.position.index,
        reason=bad.reason,
        payload=bad.payload,
        size=bad.size if is_truncated else None,
    )
