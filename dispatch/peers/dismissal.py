"""How a run says goodbye to its workers."""

from time import monotonic

from dispatch.peers.crew import Crew

WAIT_SECONDS = 1.0
"""how long to listen before everyone is kept alive again"""


def dismiss_all(crew: Crew, step: int, patience_seconds: float) -> bool:
    """Dismisses everyone; returns whether the dense weights were saved.

    The first member goes first and saves them, as the shards or, in a ring, all members have them. The others go when
    it has confirmed that, or has not for so many seconds: a worker that ends closes its connections to its peers, which
    must not happen while one still works.
    """
    members = crew.roster.members
    for first in members[:1]:
        crew.dismiss(first, step, save_dense=True)
    deadline = monotonic() + patience_seconds
    while members and not crew.has_saved and (left := deadline - monotonic()) > 0:
        crew.listen(min(left, WAIT_SECONDS))
        crew.keep_alive(step)
    dismiss_others(crew, step)
    return crew.has_saved or not members


def dismiss_others(crew: Crew, step: int) -> None:
    """Dismisses everyone who is still there; nothing is saved."""
    for member in crew.roster.everyone:
        crew.dismiss(member, step, save_dense=False)
