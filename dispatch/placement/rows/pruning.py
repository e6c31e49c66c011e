"""When chunks of rows are pruned, which ones, and which new rows get any: FIITED, with AdaEmbed as one chunk a row.

A round comes every so many steps, after a flush. Shards count their chunks by the bin of their utilities
(ps/utilities.py); from the counts follows one edge for all chunks, or one for each chunk number: chunks below are
pruned, and pruned ones above come back. Between rounds nothing is pruned, and a new row gets its chunks only if the
budget has room for them: there are never more live chunks than the budget allows. Each step records the round before it
and how many of its new rows got chunks, so that it can be repeated whatever the settings are by then.

The first round may also drop the same columns of all rows, those with the smallest gradients: FIITED's second
dimension. Chunks become narrower, and the budget has room for more of them.

Legend: K chunks of a row, L whether a chunk is live, N bins, D embedding columns.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dispatch.placement.arrays import F64, I64
from infra.base.errors import ConfigError
from ps.utilities import weight_of_use

LARGEST_RATIO = 0.95
"""Largest share of the chunks of one number that a given shape prunes, unless more must go of all of them."""
MOST_HALF_LIVES = 32
"""Half-lives after which utilities are halved as often: their weights must not overflow."""
DYNAMIC = "dynamic"


class PruneTerms(NamedTuple):
    """What is pruned."""

    chunks: int = 0
    """Chunks of a row; 0: rows are whole, and nothing is pruned."""
    budget: int = 0
    """Most live chunks of all rows; 0: no limit."""
    share: float = 0.0
    """Share of all chunks that a round leaves pruned, if there is no budget."""
    every_steps: int = 1000
    half_life_steps: int = 4000
    spare: float = 0.1
    """Share of the budget that a round leaves free for new rows."""
    enforce: float = 0.01
    """Share of the chunks that must be on the wrong side of an edge before any is pruned."""
    profile: tuple[float, ...] = ()
    """How the pruned shares of the chunk numbers relate to each other; empty: one edge for all chunks."""
    width: int = 1
    """Columns of a chunk."""
    columns: float = 1.0
    """Share of the columns that the first round leaves; 1: all."""

    @property
    def is_needed(self) -> bool:
        """Whether anything is ever pruned."""
        return self.chunks > 0 and (self.budget > 0 or self.share > 0 or self.drops_columns)

    @property
    def kept_width(self) -> int:
        """Columns of a chunk that the first round leaves."""
        return math.ceil(self.columns * self.width)

    @property
    def drops_columns(self) -> bool:
        """Whether the first round drops columns."""
        return self.kept_width < self.width

    def narrowed(self, columns: Sequence[int]) -> "PruneTerms":
        """What is pruned once rows have kept these columns; with none, nothing has been dropped."""
        if not columns:
            return self
        width = len(columns) // self.chunks
        return self._replace(width=width, columns=1.0, budget=self.budget * self.width // width)

    @property
    def full_mask(self) -> int:
        """The mask of a row whose chunks are all live."""
        return (1 << self.chunks) - 1

    def allowed(self, total: int) -> int:
        """Most chunks that are live after a round, of so many in all."""
        if self.budget:
            return int(self.budget * (1.0 - self.spare))
        return total - int(self.share * total)


class PruneRound(NamedTuple):
    """What one round does, by chunk number."""

    evict_below: tuple[int, ...]
    """Live chunks in lower bins are pruned."""
    bring_from: tuple[int, ...]
    """Pruned chunks in this bin or a higher one come back."""
    halvings: int = 0
    """Times that every utility is halved in the end."""
    columns: tuple[int, ...] = ()
    """The columns that all rows keep from now on; empty: those that they have."""


class PrunerState(NamedTuple):
    """What later rounds depend on."""

    live: int = 0
    since: int = 0
    """The step in which a use has the weight 1."""
    last_round: int = 0
    """The step after which the last round was."""
    pruned: int = 0
    """Chunks pruned so far."""
    brought_back: int = 0
    columns: tuple[int, ...] = ()
    """The columns that all rows have kept, ascending; empty: all."""


class Pruner:
    """Says when and what to prune, and counts live chunks."""

    def __init__(self, terms: PruneTerms, state: PrunerState = PrunerState()) -> None:  # noqa: B008 (immutable)
        self.terms = terms.narrowed(state.columns)
        self.state = state
        self.unrecorded: PruneRound | None = None
        """The last round, until the step after it is recorded."""

    @property
    def is_full(self) -> bool:
        """Whether a new row would get no chunks."""
        return self.terms.budget > 0 and self.state.live + self.terms.chunks > self.terms.budget

    def live_share(self, rows: int) -> float:
        """Share of the chunks of so many rows that are live; 1 for whole rows."""
        chunks = rows * self.terms.chunks
        return self.state.live / chunks if chunks else 1.0

    def is_due(self, step: int) -> bool:
        """Whether a round is to follow a step: to prune, or because weights of uses have become large."""
        is_time = self.terms.is_needed and step - self.state.last_round >= self.terms.every_steps
        return is_time or self.halvings(step) > 0

    def weight(self, step: int) -> float:
        """What a use in a step adds to a utility."""
        if not self.terms.chunks:
            return 0.0
        return weight_of_use(step, self.state.since, self.terms.half_life_steps)

    def plan(self, step: int, counts_LKN: I64, weights_D: F64 | None = None) -> PruneRound:
        """The round after a step. counts_LKN: chunks by bin; weights_D: of columns, if some are to be dropped."""
        columns: tuple[int, ...] = ()
        if self.terms.drops_columns:
            assert weights_D is not None, "columns are to be dropped, and nobody knows what they are worth"
            columns = strongest(self.terms, weights_D)
        evict_below, bring_from = edges(self.terms.narrowed(columns), counts_LKN)
        return PruneRound(evict_below, bring_from, self.halvings(step), columns)

    def halvings(self, step: int) -> int:
        """Times that utilities are halved in a round after a step."""
        half_lives = (step - self.state.since) // self.terms.half_life_steps
        return half_lives if self.terms.chunks and half_lives >= MOST_HALF_LIVES else 0

    def end_round(self, step: int, done: PruneRound, live: int, pruned: int, brought_back: int) -> None:
        """Notes what a round after a step did; live: chunks before it."""
        state = self.state
        self.terms = self.terms.narrowed(done.columns)
        self.state = PrunerState(
            live=live - pruned + brought_back,
            since=state.since + done.halvings * self.terms.half_life_steps,
            last_round=step,
            pruned=state.pruned + pruned,
            brought_back=state.brought_back + brought_back,
            columns=done.columns or state.columns,
        )

    def admit(self, new: int, chunked: int | None = None) -> int:
        """How many of so many new rows get chunks, the first ones. chunked: so many, as recorded."""
        chunks = self.terms.chunks
        if chunked is None:
            room = (self.terms.budget - self.state.live) // chunks if self.terms.budget and chunks else new
            chunked = min(new, max(0, room))
        self.state = self.state._replace(live=self.state.live + chunked * chunks)
        return chunked

    def forget(self, live: int) -> None:
        """Notes that rows with so many live chunks are forgotten."""
        self.state = self.state._replace(live=self.state.live - live)


def strongest(terms: PruneTerms, weights_D: F64) -> tuple[int, ...]:
    """The columns of each chunk with the largest weights, as many as stay, ascending; of equal ones the first."""
    order_KX = np.argsort(-weights_D.reshape(terms.chunks, terms.width), axis=1, kind="stable")
    kept_KX = np.sort(order_KX[:, : terms.kept_width], axis=1) + terms.width * np.arange(terms.chunks)[:, None]
    return tuple(kept_KX.reshape(-1).tolist())


def edges(terms: PruneTerms, counts_LKN: I64) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The bins below which live chunks are pruned, and from which pruned ones come back, by chunk number."""
    pruned_KN, live_KN = counts_LKN
    total_KN = pruned_KN + live_KN
    total = int(total_KN.sum())
    allowed = terms.allowed(total)
    live = int(live_KN.sum())
    if terms.profile:
        total_K = total_KN.sum(axis=1)
        ratios_K = fit_ratios(terms.profile, 1.0 - allowed / max(1, total))
        allowed_K = total_K - np.ceil(ratios_K * total_K).astype(np.int64)
        edge_K = [edge_of(total_KN[k], int(allowed_K[k])) for k in range(terms.chunks)]
    else:
        edge_K = [edge_of(total_KN.sum(axis=0), allowed)] * terms.chunks
    wrong = sum(int(live_KN[k, :edge].sum() + pruned_KN[k, edge:].sum()) for k, edge in enumerate(edge_K))
    if live > allowed or wrong >= terms.enforce * total:
        return tuple(edge_K), tuple(edge_K)
    above_KN = pruned_KN * (np.arange(pruned_KN.shape[1]) >= np.array(edge_K)[:, None])
    fitting = edge_of(above_KN.sum(axis=0), allowed - live)
    return (0,) * terms.chunks, tuple(max(edge, fitting) for edge in edge_K)


def edge_of(counts_N: I64, allowed: int) -> int:
    """The lowest bin such that at most so many are in it and above; one bin too high if there is none."""
    above_N = np.cumsum(counts_N[::-1])[::-1]
    return int(np.count_nonzero(above_N > max(0, allowed)))


def fit_ratios(profile: Sequence[float], mean: float) -> F64:
    """Shares in the relation of a profile, with this mean; those above the largest become it, and the others rise."""
    shape_K = np.array(profile, np.float64)
    if mean >= LARGEST_RATIO:
        return np.full(shape_K.size, mean)
    ratios_K = np.zeros(shape_K.size)
    is_open_K = np.ones(shape_K.size, np.bool_)
    while is_open_K.any():
        left = max(0.0, mean) * shape_K.size - LARGEST_RATIO * np.count_nonzero(~is_open_K)
        if not shape_K[is_open_K].any():  # the profile spares them, and the others cannot be pruned further
            shape_K[is_open_K] = 1.0
        ratios_K[is_open_K] = left * shape_K[is_open_K] / shape_K[is_open_K].sum()
        is_largest_K = is_open_K & (ratios_K > LARGEST_RATIO)
        if not is_largest_K.any():
            break
        ratios_K[is_largest_K] = LARGEST_RATIO
        is_open_K &= ~is_largest_K
    return ratios_K


def profile_of(shape: str, chunks: int) -> tuple[float, ...]:
    """The profile that a setting names: dynamic, linear, power:A, or a number for each chunk."""
    if shape == DYNAMIC:
        return ()
    try:
        if shape == "linear" or shape.startswith("power:"):
            power = 1.0 if shape == "linear" else float(shape.removeprefix("power:"))
            numbers = [((k + 0.5) / max(1, chunks)) ** power for k in range(chunks)]
        else:
            numbers = [float(number) for number in shape.split(",")]
        is_usable = len(numbers) == chunks and all(0 <= number < float("inf") for number in numbers) and any(numbers)
    except (ValueError, OverflowError, ZeroDivisionError):
        is_usable = False
    if not is_usable:
        raise ConfigError(
            f"memory.prune_shape is {shape!r} for {chunks} chunks; expected 'dynamic', 'linear', 'power:A', or a "
            "number from 0 up for each chunk, separated by commas; correct it"
        )
    return tuple(numbers)
