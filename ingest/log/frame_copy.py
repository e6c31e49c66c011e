"""Where the frames of a journal are kept besides its folder: what is asked of such a place."""

from typing import NamedTuple, Protocol


class CopiedFrames(NamedTuple):
    """The contents of a copy."""

    journal: str
    """Identity of the journal; empty: there is nothing."""
    owner: str
    """Who wrote last."""
    about: bytes
    """What the newest owner said of itself."""
    first: int
    """Number of the first frame."""
    bodies: list[bytes]


class FrameCopy(Protocol):
    """One journal's frames, for one owner at a time."""

    def take(self, owner: str, after: str, journal: str) -> CopiedFrames:
        """Becomes the owner: nobody else can write from now on. Returns what is there.

        after: the owner that may be replaced, empty: none. Raises OwnerReplaced if it is somebody else, who goes on.
        """

    def append(self, number: int, body: bytes) -> None:
        """Returns once a frame is durable.

        Raises SinkUnavailable if it is unknown whether it is: the same number may be written again, with another
        content. Raises OwnerReplaced if somebody else has become the owner.
        """

    def drop_before(self, number: int) -> None:
        """Removes the frames before that one, if that is possible now; otherwise they stay until the next time."""

    def close(self) -> None: ...
