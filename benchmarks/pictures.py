"""Pictures of results of real runs, drawn without a screen."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.prune import MIB, PruneResult
from benchmarks.simulated.hot import HotPoint


def plot_prune(results: Sequence[PruneResult], output: Path) -> None:
    """Memory of the shards against logloss, one line for each number of columns and chunks."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    drawn = [result for result in results if not result.refused and result.overall.logloss is not None]
    measures = (
        ("shards_bytes", "Resident memory of all shards, MiB"),
        ("rows_bytes", "The same, above idle shards, MiB"),
    )
    for axes, (name, title) in zip(figure.subplots(1, 2, sharey=True), measures, strict=True):
        by_line = groupby(drawn, key=lambda result: (result.dim, result.chunks, result.columns))
        for (dim, chunks, columns), group in by_line:
            points = [(getattr(result, name) / MIB, result.overall.logloss, result.keep) for result in group]
            label = f"dim {dim}, " + (f"chunks {chunks}" if chunks else "whole rows")
            label += f", {columns:g} of the columns" if columns < 1.0 else ""
            sizes = [size for size, _, _ in points]
            axes.plot(sizes, [loss for _, loss, _ in points], marker="o" if chunks else "s", label=label)
            for size, loss, keep in points:
                axes.annotate(f"{keep:g}", (size, loss), textcoords="offset points", xytext=(4, 4), fontsize=8)
        axes.set_xlabel(title)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("logloss, predict-then-train")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(output, dpi=130)


def plot_hot(points: Sequence[HotPoint], title: str, output: Path) -> None:
    """What sets of several sizes cost, and what they move; the size that the rule chose is marked in both."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    sizes = [point.rows for point in points]
    left.plot(sizes, [point.cost for point in points], marker="o", label="cost of rows")
    left.plot(sizes, [point.links_ms / points[0].links_ms for point in points], marker="s", label="time on links")
    left.set_ylabel("relative to none")
    right.plot(sizes, [point.shards_mb for point in points], marker="o", label="over the shards' link")
    right.plot(sizes, [point.ring_mb for point in points], marker="s", label="in the ring")
    right.set_ylabel("MB a step")
    for axes in (left, right):
        for chosen in (point.rows for point in points if point.is_chosen):
            axes.axvline(chosen, color="black", linestyle="--", linewidth=1, label=f"the rule: {chosen} rows")
        axes.set_xscale("symlog", linthresh=16)
        axes.set_xlim(left=0)
        axes.set_xticks(sizes, map(str, sizes), rotation=45)
        axes.set_xlabel("replicated rows")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.savefig(output, dpi=130)
