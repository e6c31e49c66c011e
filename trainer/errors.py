"""TrainerError
├── DeviceMissing    the device asked for is not on this machine
├── PeersLost        the other workers of the generation could not be reached, or went away
├── DispatcherLost   the dispatcher was silent for too long
├── Interrupted      the generation ended while the worker waited for something
└── Rejected         the dispatcher refused this worker: it was silent, or another has taken its name
    ├── TurnedAway   … before it took part: its settings differ
    └── Removed      … because an operator removed it: it leaves in order
"""

from infra.base.errors import ConfigError, FreshetError


class TrainerError(FreshetError):
    """Base of the worker's errors."""


class DeviceMissing(TrainerError, ConfigError):
    """The requested device does not exist on this machine."""


class PeersLost(TrainerError):
    """The dense process group could not be formed, or one of its members was lost."""


class DispatcherLost(TrainerError):
    """The dispatcher was silent for longer than its time limit."""


class Rejected(TrainerError):
    """The dispatcher refused this worker."""


class TurnedAway(Rejected, ConfigError):
    """The dispatcher refused this worker, and would refuse it again after a restart."""


class Removed(Rejected):
    """An operator removed this worker from the run, now or before it was restarted."""


class Interrupted(TrainerError):
    """The generation ended while the worker waited for something."""
