"""Every error Freshet raises on purpose.

FreshetError
├── ConfigError (also ValueError)   a setting or an argument is wrong; raised before anything starts
│   └── NameTaken                   another process, which is alive, has the name or number of this one
├── WireError                       a message is malformed or of the wrong kind
│   └── Fenced                      the sender belongs to another run or an old generation
├── ProcessFailed                   a supervised process ended when it should not have
├── MissingProgram                  a system program that is needed is missing or too old
├── FileUnusable                    a file of the run cannot be written or read; the message names it
│   └── StorageError                the same of a file of a checkpoint
│       └── NotStored               there is no such file
├── ingest.errors.IngestError
├── dispatch.errors.DispatchError
├── dispatch.placement.errors.PlacementError
├── ps.errors.PsError
└── trainer.errors.TrainerError

A message has four parts: what failed, the values, what was expected, what to do.
"""


class FreshetError(Exception):
    """Base of every error raised on purpose; the command line prints it as one line."""


class ConfigError(FreshetError, ValueError):
    """A setting or an argument is wrong; nothing has been started or written."""


class NameTaken(ConfigError):
    """Another live process has the name or number of this one."""


class WireError(FreshetError):
    """A message could not be understood."""


class Fenced(WireError):
    """The sender belongs to another run or to a generation that has ended."""


class ProcessFailed(FreshetError):
    """A supervised process ended when it should not have."""


class MissingProgram(FreshetError):
    """A system program that is needed is missing or too old."""


class FileUnusable(FreshetError):
    """A file of the run cannot be written or read."""


class StorageError(FileUnusable):
    """A file of a checkpoint cannot be written or read, or has no proper name."""


class NotStored(StorageError):
    """There is no such file of a checkpoint."""
