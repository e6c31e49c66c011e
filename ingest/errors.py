"""IngestError
├── InputError          a file to replay is broken; the message names its line
├── NothingPredicts     no snapshot is served yet, so nobody predicts
├── AbsentField         no event of many has a field of the schema
├── EncodeError         an event that does not fit its schema was given to an encoder
├── SourceError         events that a manifest or a position names cannot be read
│   ├── OffsetOutOfRange    retention has removed them, or they were never written
│   └── SourceUnavailable   not now: the broker does not answer; asking again may help
├── BrokerError         Kafka does not answer, or refuses this client or this topic
├── SinkError           records cannot be written, or it is not known whether they were
│   ├── SinkUnavailable     not now: the broker does not answer; the same again may help
│   └── TransactionFailed   a transaction may or may not have been committed; a new one may help
│       ├── TransactionRefused  the broker does not allow it
│       └── TransactionFenced   another producer has taken its id
└── LogError            the embedded log cannot be written or read
    ├── LogCorrupt      bytes that were durable have changed; the message names file and byte
    └── LogBusy         another process writes this partition

Bad events raise no error: they become dead letters (ingest.letters.letter).
"""

from infra.base.errors import FreshetError


class IngestError(FreshetError):
    """Base of the errors of ingest."""


class InputError(IngestError):
    """A file to replay is broken."""


class NothingPredicts(IngestError):
    """No snapshot of the model is served yet."""


class AbsentField(IngestError):
    """None of many events has a field of the schema, and the settings say to stop then."""


class EncodeError(IngestError):
    """An event that does not fit its schema was given to an encoder."""


class SourceError(IngestError):
    """Events named by a manifest or a position cannot be read."""


class OffsetOutOfRange(SourceError):
    """The offset is before the first retained record or after the last one."""


class SourceUnavailable(SourceError):
    """The source cannot answer now; the stream has not ended, and a retry may help."""


class BrokerError(IngestError):
    """Kafka does not answer, or refuses this client or this topic."""


class SinkError(IngestError):
    """Records cannot be written, or it is unknown whether they were."""


class SinkUnavailable(SinkError):
    """The sink cannot accept records now; a retry with the same records may help."""


class OwnerReplaced(SinkError):
    """Another owner writes the frames of a journal's copy."""


class TransactionFailed(SinkError):
    """A transaction with Kafka may or may not have been committed; a new one may help."""


class TransactionRefused(TransactionFailed):
    """The broker does not allow the transaction."""


class TransactionFenced(TransactionFailed):
    """Another producer has taken over the transaction's id."""


class LogError(IngestError):
    """The embedded log cannot be written or read."""


class LogCorrupt(LogError):
    """Bytes that were durable have changed."""


class LogBusy(LogError):
    """Another process writes this partition."""
