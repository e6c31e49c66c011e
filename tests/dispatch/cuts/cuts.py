"""Parts of cuts for tests."""

from typing import Any

from dispatch.cuts.state import Decided, Trained
from dispatch.progress.accounts import Accounts
from ingest.streams.position import Position
from ps.cuts.manifest import CutManifest, ShardPart
from ps.protocol import FilePart


def decided(step: int = 5, **values: Any) -> Decided:
    fixed: dict[str, Any] = {"generation": 1, "positions": {0: Position(step)}, "samples": 2 * step, "rows": 0}
    return Decided(step=step, **(fixed | values))


def trained(accounts: Accounts | None = None) -> Trained:
    return Trained(accounts=(accounts or Accounts("r", "esd")).save(), links={})


def manifest_of(
    number: int, dispatcher: FilePart, step: int = 5, shards: tuple[ShardPart, ...] = (), at_seconds: float = 0.0
) -> CutManifest:
    known: dict[str, Any] = {"run": "r", "generation": 1, "at_seconds": at_seconds}
    return CutManifest(number=number, step=step, shards=shards, dispatcher=dispatcher, **known)
