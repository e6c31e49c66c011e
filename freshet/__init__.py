"""What programs import: names here are stable, everything else of the code base may change.

Names are loaded when they are first used, so that ``import freshet`` takes no time and needs no torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from freshet.learner import Learner

__all__ = ["Learner"]


def __getattr__(name: str) -> Any:
    if name == "Learner":
        from freshet.learner import Learner

        return Learner
    raise AttributeError(f"module 'freshet' has no attribute {name!r}; it has {', '.join(__all__)}")
