"""TrainerError
├── DeviceMissing    the device asked for is not on this machine
├── PeersLost        the other workers of the generation could not be reached, or went away
├── DispatcherLost   the dispatcher was silent for too long
├── Interrupted      the generation ended while the worker waited for something
└── Rejected         the dispatcher refused this worker
    └── Displaced    a newer process of the same name has joined
"""

from infra.errors import ConfigError, FreshetError


class TrainerError(FreshetError):
    """Base of the worker's errors."""


class DeviceMissing(TrainerError):
    """The device asked for is not on this machine."""


class PeersLost(TrainerError):
    """The dense process group could not be formed, or one of its members went away."""


class DispatcherLost(TrainerError):
    """The dispatcher was silent for longer than its time limit."""


class Rejected(TrainerError):
    """The dispatcher refused this worker."""


class Displaced(Rejected, ConfigError):
    """A newer process of the same name has joined; started again, this one would only displace that one."""


class Interrupted(TrainerError):
    """The generation ended while the worker waited for something."""
