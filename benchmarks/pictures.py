"""Pictures of results of real runs, drawn without a screen."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.prune import MIB, PruneResult


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
