"""Pictures of results, drawn without a screen."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.simulated.dispatch import DispatchResult
from benchmarks.simulated.workload import Workload, is_slow
from infra.base.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = (
    ("miss_pull", "miss pull", "#3b6fb6"),
    ("update_push", "update push", "#e08b2c"),
    ("evict_push", "evict push", "#6aa84f"),
    ("all_reduce", "all-reduce", "#8e63b0"),
    ("dense", "dense", "#9a9a9a"),
)
"""Field of a result, its name, its colour."""
CLASSES = ((False, "fast links", ""), (True, "slow links", "//"))
"""Class of a link, its name, its hatching."""


def check_can_plot() -> None:
    """Raises ConfigError before anything is measured if the picture could not be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "cannot draw: matplotlib is not installed; expected the extra 'plot'; run uv pip install 'freshet[plot]' "
            "or leave --plot out"
        ) from error


def plot_dispatch(results: Sequence[DispatchResult], workload: Workload, output: Path) -> None:
    """Cost by kind of move and link class, one bar a policy; and the share of the bytes moved, the same way."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 + 1.4 * len(results), 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    links_gbit = workload.links_gbit
    prices = dict(zip((field for field, _, _ in KINDS), workload.cost_5n, strict=True))
    _stack(left, results, links_gbit, prices, shares=False)
    left.set_title("Cost, in whole rows over the fastest link")
    _stack(right, results, links_gbit, dict.fromkeys(prices, np.ones(len(links_gbit))), shares=True)
    right.set_title("Share of bytes, a ring's counted one way")
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(output, dpi=130)


def _stack(
    axes: "Axes",
    results: Sequence[DispatchResult],
    links_gbit: Sequence[float],
    prices: Mapping[str, Any],
    shares: bool,
) -> None:
    """Fast links at the bottom, slow ones above them; within a class the kinds of move."""
    slow_n = np.array(is_slow(links_gbit))
    heights_R: Any = np.zeros(len(results))
    totals_R = np.array([sum(_priced(r, field, prices).sum() for field, _, _ in KINDS) for r in results])
    scale_R = np.maximum(totals_R, 1) if shares else np.ones(len(results))
    for is_slow_class, class_name, hatch in CLASSES:
        if not (slow_n == is_slow_class).any():
            continue
        for field, kind, colour in KINDS:
            parts_R = np.array([_priced(r, field, prices)[slow_n == is_slow_class].sum() for r in results]) / scale_R
            axes.bar(
                [r.policy for r in results],
                parts_R,
                bottom=heights_R,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                label=f"{kind}, {class_name}",
            )
            heights_R = heights_R + parts_R
    axes.spines[["top", "right"]].set_visible(False)


def _priced(result: DispatchResult, field: str, prices: Mapping[str, Any]) -> Any:
    return np.array(getattr(result, field)) * prices[field]
