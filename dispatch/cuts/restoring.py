"""Going back to a cut: the dispatcher's side of it. Shards load their own parts (ps/cuts/restore.py)."""

from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from dispatch.cuts.state import DispatcherState, load_index, read_state
from dispatch.errors import CutUnusable
from dispatch.rows.index import Index
from infra.storage import Storage
from ps.cuts.manifest import CutManifest, manifest_numbers, read_manifest
from ps.errors import CutDamaged


@dataclass(frozen=True)
class LoadedCut:
    """A cut that the dispatcher can go on from."""

    manifest: CutManifest
    state: DispatcherState
    index: Index


def load_cut(storage: Storage, number: int, run: str) -> LoadedCut:
    """Raises CutDamaged, which names the file, unless the dispatcher's part and all keys are whole and of this run."""
    manifest = read_manifest(storage, number)
    if manifest.run != run:
        raise CutDamaged(
            f"cut {number} is of run {manifest.run!r}; expected {run!r}; give each run a cuts.url of its own"
        )
    state = read_state(storage, manifest)
    if manifest.rows != state.decided.rows:
        raise CutDamaged(
            f"cut {number} has {manifest.rows} rows, and {state.decided.rows} were given out; expected as many; go "
            "back to another cut"
        )
    return LoadedCut(manifest, state, Index.restore(load_index(storage, manifest)))


def load_newest(storage: Storage, on_record: Iterable[int], run: str) -> LoadedCut | None:
    """The newest cut that is whole, of those that the journal knows; None if there is none.

    Damaged ones are passed over with an error in the log: the replay is longer then.
    """
    for number in sorted({*manifest_numbers(storage)} & {*on_record}, reverse=True):
        try:
            return load_cut(storage, number, run)
        except (CutDamaged, CutUnusable) as error:
            structlog.get_logger().error("cut damaged; going back further", cut=number, reason=str(error))
    return None
