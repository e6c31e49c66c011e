"""DispatchError
├── BadScores                 logits and labels that do not belong together
├── Recoverable               a process or a checkpoint is lost: the run goes back to a checkpoint and continues there
│   ├── ShardSilent           a PS shard does not answer, or does not finish a round, in time
│   ├── CrewFailed            a worker or shard is lost, or stopped reporting
│   ├── CheckpointUnusable    the checkpoint to go back to is damaged
│   ├── CheckpointUnreadable  storage does not give out that checkpoint: it is tried again, and then an older one
│   └── JournalFull           the journal cannot be appended for lack of room; the same append may be tried again
├── ShardRefused              a PS shard refused a message of the dispatcher
│   └── ShardDisagrees        … because it has other settings: it would refuse it again
├── BadReport                 a worker's report cannot be read, or is not of what it was ordered to do
├── RunEnded                  the run's folder holds a run that is over
├── SettingsChanged           a run would go on with settings that its journal rules out
├── OtherEvents               the stream does not hold what a step of the journal was trained on
├── NoCheckpoint              no checkpoint is usable, and the journal does not reach back to the run's start
├── CommandRefused            a command was not carried out; the message is the reason
└── NoAnswer                  nobody answers a command in time
    └── OutOfReach            … or can be asked from here at all
"""

from infra.base.errors import ConfigError, FreshetError
from ingest.errors import LogError


class DispatchError(FreshetError):
    """Base of the dispatcher's errors."""


class BadScores(DispatchError, ValueError):
    """Logits and labels do not belong together."""


class Recoverable(DispatchError):
    """A process of the run is lost, or a checkpoint: the run goes back to a checkpoint and goes on from there."""


class CheckpointUnusable(Recoverable):
    """The checkpoint to go back to is damaged."""


class CheckpointUnreadable(Recoverable):
    """Storage does not give out the checkpoint to go back to, whatever that holds: it may be tried again."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number
        """of the checkpoint; 0: not even which there are can be told"""


class ShardSilent(Recoverable):
    """A PS shard does not answer, or does not finish a round, in time."""


class ShardRefused(DispatchError):
    """A PS shard refused a message of the dispatcher."""

    def __init__(self, message: str, error: str = "") -> None:
        super().__init__(message)
        self.error = error
        """type of the shard's own error"""


class ShardDisagrees(ShardRefused, ConfigError):
    """A PS shard refused a message of the dispatcher because its settings differ; it would do so again."""


class CrewFailed(Recoverable):
    """A worker or shard is lost, or stopped reporting."""


class BadReport(DispatchError):
    """A worker's report cannot be read, or is not of what the worker was ordered to do; the run cannot go on."""


class RunEnded(DispatchError, ConfigError):
    """The run's folder holds a run that is over."""


class SettingsChanged(DispatchError, ConfigError):
    """A run would go on with settings that its journal rules out."""


class OtherEvents(DispatchError):
    """The stream does not hold what a step of the journal was trained on."""


class JournalFull(Recoverable, LogError):
    """The journal cannot be appended for lack of room; nothing was lost, and the same append may be tried again."""


class NoCheckpoint(DispatchError):
    """No checkpoint can be used, and the journal does not reach back to the run's start."""


class CommandRefused(DispatchError):
    """A command was not carried out."""


class CommandOutdated(CommandRefused):
    """A command was not carried out, because another came after the cursor it was given at."""

    def __init__(self, message: str, cursor: int) -> None:
        super().__init__(message)
        self.cursor = cursor
        """the end of the journal"""


class NoAnswer(DispatchError):
    """Nobody answers a command in time; it may have been carried out."""


class OutOfReach(NoAnswer, ConfigError):
    """Nobody can be asked at an endpoint from here: by this user, or on this machine."""
