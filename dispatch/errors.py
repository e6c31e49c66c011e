"""DispatchError
├── BadScores                 logits and labels that do not belong together
├── Recoverable               a process or a checkpoint is lost: the run goes back to a checkpoint and continues there
│   ├── ShardSilent           a PS shard does not answer, or does not finish a round, in time
│   ├── CrewFailed            a worker or shard is lost, or stopped reporting
│   ├── CheckpointUnusable    the checkpoint to go back to is damaged
│   ├── CheckpointUnreadable  storage does not return that checkpoint: it is tried again, then an older one
│   └── JournalUnwritable     the journal cannot be appended now; the same append may be tried again
├── ShardRefused              a PS shard refused a message of the dispatcher
│   └── ShardDisagrees        … because its settings differ; it would refuse it again
├── BadReport                 a worker's report cannot be read, or does not match its order
├── RunEnded                  the run's folder holds a run that is over
├── JournalTaken              … or one that goes on elsewhere
├── SettingsChanged           a run would continue with settings that its journal rules out
├── OtherEvents               the stream no longer holds the events that a recorded step was trained on
├── NoCheckpoint              no checkpoint is usable, and the journal does not reach back to the run's start
├── CommandRefused            a command was not carried out; the message is the reason
└── NoAnswer                  nobody answered a command in time
    └── OutOfReach            … because no process can be reached there from here
"""

from infra.base.errors import ConfigError, FreshetError
from ingest.errors import LogError


class DispatchError(FreshetError):
    """Base of the dispatcher's errors."""


class BadScores(DispatchError, ValueError):
    """Logits and labels do not belong together."""


class Recoverable(DispatchError):
    """A process of the run or a checkpoint is lost: the run goes back to a checkpoint and continues from there."""


class CheckpointUnusable(Recoverable):
    """The checkpoint to go back to is damaged."""


class CheckpointUnreadable(Recoverable):
    """Storage does not return the checkpoint to go back to; its contents may be intact, so it may be tried again."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number
        """Number of the checkpoint; 0 if not even the list of checkpoints can be read."""


class ShardSilent(Recoverable):
    """A PS shard does not answer, or does not finish a round, in time."""


class ShardRefused(DispatchError):
    """A PS shard refused a message of the dispatcher."""

    def __init__(self, message: str, error: str = "") -> None:
        super().__init__(message)
        self.error = error
        """Type of the shard's own error."""


class ShardDisagrees(ShardRefused, ConfigError):
    """A PS shard refused a message because its settings differ from the dispatcher's; it would refuse it again."""


class CrewFailed(Recoverable):
    """A worker or shard is lost, or stopped reporting."""


class BadReport(DispatchError):
    """A worker's report cannot be read, or does not match its order; the run cannot continue."""


class RunEnded(DispatchError, ConfigError):
    """The run's folder holds a run that is over."""


class SettingsChanged(DispatchError, ConfigError):
    """A run would continue with settings that its journal rules out."""


class OtherEvents(DispatchError):
    """The stream no longer holds the events that a recorded step was trained on."""


class JournalUnwritable(Recoverable, LogError):
    """The journal cannot be appended now: there is no room, or Kafka, which keeps a copy, does not answer.

    Nothing was lost, and the same append may be tried again.
    """


class JournalTaken(DispatchError, ConfigError):
    """A run goes on elsewhere: another folder continues its journal."""


class NoCheckpoint(DispatchError):
    """No checkpoint can be used, and the journal does not reach back to the run's start."""


class CommandRefused(DispatchError):
    """A command was not carried out."""


class CommandOutdated(CommandRefused):
    """A command was not carried out because another one came after the cursor at which it was given."""

    def __init__(self, message: str, cursor: int) -> None:
        super().__init__(message)
        self.cursor = cursor
        """Cursor of the end of the journal."""


class NoAnswer(DispatchError):
    """Nobody answered a command in time; it may have been carried out."""


class OutOfReach(NoAnswer, ConfigError):
    """No process can be reached at this endpoint by this user or from this machine."""
