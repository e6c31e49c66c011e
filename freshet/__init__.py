"""Freshet for Python programs: ``import freshet``.

    with freshet.Client("http://127.0.0.1:8100", token) as client:
        client.predict([{"user": "u17", "item": 42}]).probabilities

It re-exports ``freshet_client``, which is a distribution of its own (``freshet-client``) for programs on machines
without Freshet. Names are loaded when they are first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from freshet_client import *  # noqa: F403
    from freshet_client import __all__ as __all__


def __getattr__(name: str) -> Any:
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'freshet' has no attribute {name!r}")
    try:
        import freshet_client
    except ModuleNotFoundError as error:
        if error.name != "freshet_client":
            raise
        raise ImportError(
            f"freshet.{name} needs the client, which is not installed; expected freshet-client beside freshet; install "
            "it ('make setup' does), as in: pip install ./client"
        ) from error
    if name == "__all__" or name in freshet_client.__all__:
        return getattr(freshet_client, name)
    raise AttributeError(f"module 'freshet' has no attribute {name!r}; it has {', '.join(freshet_client.__all__)}")


def __dir__() -> list[str]:
    import freshet_client

    return list(freshet_client.__all__)
