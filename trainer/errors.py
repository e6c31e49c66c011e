"""TrainerError
├── DeviceMissing    the device asked for is not on this machine
├── PeersLost        the other workers of the generation could not be reached, or went away
├── DispatcherLost   the dispatcher was silent for too long
└── Rejected         the dispatcher refused this worker
"""

from infra.errors import FreshetError


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
