"""PsError
├── UnknownRow       a row number that was never announced
├── OutOfOrder       a round, push or pull that does not follow the announced order
├── CheckpointDamaged       a file of a checkpoint is missing, or is not what was written
├── Disagreement     a sender takes the shard for another one, or has other settings
├── Displaced        another process took the place of this one while it could not be reached
└── Unreachable      a shard did not answer in time
"""

from infra.base.errors import FreshetError


class PsError(FreshetError):
    """Base of the parameter server's errors."""


class UnknownRow(PsError):
    """A row number that was not introduced by any announcement."""


class OutOfOrder(PsError):
    """A round, push or pull that does not follow what the dispatcher announced."""


class CheckpointDamaged(PsError):
    """A file of a checkpoint is missing, too short, or holds something other than what was written."""


class Disagreement(PsError):
    """A sender addresses another shard than this one, or has other settings."""


class Displaced(PsError):
    """Another process took the place of this one while it could not be reached; a restart may win it back."""


class Unreachable(PsError):
    """A shard did not answer within its time limit."""
