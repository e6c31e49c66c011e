"""How a run releases its workers."""

from time import monotonic

from dispatch.peers.crew import Crew
from dispatch.peers.losses import lost
from dispatch.protocol import Idle

WAIT_SECONDS = 1.0
"""How long to listen before everyone gets another sign of life."""


def dismiss_first(crew: Crew, step: int, patience_seconds: float) -> bool:
    """Releases the first member, which saves the dense weights before it leaves; returns whether it did in time.

    Shards or, in a ring, all members have them. The others leave later: a worker that ends closes its connections to
    its peers, which must not happen while one still works. Raises CrewFailed if the first one is lost before it has
    saved them: then another one must. Without members there is nothing to save.
    """
    members = crew.roster.members
    for first in members[:1]:
        crew.dismiss(first, step, save_dense=True)
    deadline = monotonic() + patience_seconds
    while members and not crew.has_saved and (left := deadline - monotonic()) > 0:
        crew.listen(min(left, WAIT_SECONDS))
        crew.keep_alive(step)
        if not crew.has_saved and not crew.socket.transmit(members[0].identity, Idle(**crew.at(step))):
            crew.listen(0.0)  # its last message may still have been on its way
            if not crew.has_saved:
                raise lost([f"worker {members[0].name}"], crew.silence_seconds)
    return crew.has_saved or not members


def dismiss_others(crew: Crew, step: int) -> None:
    """Releases everyone else, including those who have asked to join and were not heard yet; nothing is saved."""
    while crew.listen(0.0) is not None:
        pass
    for member in crew.roster.everyone:
        crew.dismiss(member, step, save_dense=False)
