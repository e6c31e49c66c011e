"""Freshet for Python programs: ``import freshet``.

    with freshet.Client("http://127.0.0.1:8100", token) as client:
        client.predict([{"user": "u17", "item": 42}]).probabilities

    learner = freshet.Learner("schema.toml")
    learner.learn_one({"user": "u17", "item": 42}, label=1)

    with freshet.start("schema.toml", run="shop") as run:
        run.send([{"user": "u17", "item": 42, "label": 1}])

Names here are stable; everything else of the code base may change. Those of the client are re-exported from
``freshet_client``, which is a distribution of its own (``freshet-client``) for programs on machines without Freshet.
Names are loaded when they are first used: the client needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from infra.base.parts import module

if TYPE_CHECKING:
    from freshet_client import *  # noqa: F403

    from dispatch.placement.assign.situation import Situation as Situation
    from freshet.learner import Learner as Learner
    from freshet.runs import Run as Run
    from freshet.runs import attach as attach
    from freshet.runs import start as start
    from infra.base.errors import ConfigError as ConfigError
    from infra.base.errors import FreshetError as FreshetError
    from infra.base.errors import ProcessFailed as ProcessFailed
    from ingest.errors import OffsetOutOfRange as OffsetOutOfRange
    from ingest.errors import SourceUnavailable as SourceUnavailable
    from ingest.streams.plugged import SourceInputs as SourceInputs
    from ingest.streams.source import Record as Record
    from trainer.models.plugged import ModelInputs as ModelInputs

OWN = {
    "Learner": "freshet.learner",
    "ModelInputs": module("trainer.models.plugged"),
    "OffsetOutOfRange": module("ingest.errors"),
    "Record": module("ingest.streams.source"),
    "Situation": module("dispatch.placement.assign.situation"),
    "SourceInputs": module("ingest.streams.plugged"),
    "SourceUnavailable": module("ingest.errors"),
    "ConfigError": module("infra.base.errors"),
    "FreshetError": module("infra.base.errors"),
    "ProcessFailed": module("infra.base.errors"),
    "Run": "freshet.runs",
    "attach": "freshet.runs",
    "start": "freshet.runs",
}
"""Names that are not the client's, and the modules that have them."""


def __getattr__(name: str) -> Any:
    if name in OWN:
        return getattr(import_module(OWN[name]), name)
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'freshet' has no attribute {name!r}")
    if name == "__all__":
        return __dir__()
    if name in _client().__all__:
        return getattr(_client(), name)
    raise AttributeError(f"module 'freshet' has no attribute {name!r}; it has {', '.join(__dir__())}")


def __dir__() -> list[str]:
    return [*_client().__all__, *OWN]


def _client() -> Any:
    try:
        import freshet_client
    except ModuleNotFoundError as error:
        if error.name != "freshet_client":
            raise
        raise ImportError(
            "this name of freshet needs the client, which is not installed; expected freshet-client beside freshet; "
            "install it ('make setup' does), as in: pip install ./client"
        ) from error
    return freshet_client
