"""When several workers are worth using: maps of plans and of real runs, drawn without a screen."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.simulated.plots import check_can_plot
from infra.base.errors import ConfigError
from infra.plan.grid import GridPlace
from infra.plan.plan import Simulated, speed_up_map
from infra.plan.simulate import PlanJob

FACTORS = np.geomspace(1 / 64, 64, 49)
"""Factors of compute and of link speed, around the given ones."""
PAYS = 1.05
"""Speed-up over one worker alone from which on several are worth using."""
DARK = 0.6
"""Power of two of a gain, in either direction, from which its colour is dark."""
LEVELS = (1.0, PAYS, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0, 128.0)


def check_picture(output: Path | None) -> None:
    """Raises ConfigError, before anything is simulated, for a picture that cannot be drawn."""
    if output is None:
        return
    check_can_plot()
    if output.suffix not in (".svg", ".png", ".pdf") or not output.parent.is_dir():
        raise ConfigError(
            f"cannot draw {output}; expected a .svg, .png or .pdf file in a folder that exists; correct --plot"
        )


def plot_plan(plan: Simulated, job: PlanJob, output: Path) -> None:
    """How many times faster than one worker alone the best set is; the given settings are marked."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import BoundaryNorm
    from matplotlib.figure import Figure

    if 1 not in plan.loads:
        raise ConfigError(
            "no map can be drawn: one worker alone, which everything is compared with, cannot hold a batch; expected "
            "room for one; raise dispatch.cache_rows or lower stream.batch"
        )
    result = plan.result
    compute_us = 1e6 * job.compute.of(job.batch) / job.batch
    link_gbit = max(result.links_gbit)
    faster_YX = speed_up_map(plan.loads, FACTORS, FACTORS)
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    levels = [level for level in LEVELS if level < faster_YX.max()] or [1.0]
    colours = BoundaryNorm([*levels, LEVELS[len(levels)]], 256)
    x = compute_us * FACTORS
    y = link_gbit * FACTORS
    drawn = axes.pcolormesh(x, y, faster_YX, norm=colours, cmap="YlGnBu", shading="nearest", rasterized=True)
    if faster_YX.max() > PAYS:
        axes.contour(x, y, faster_YX, levels=[PAYS], colors="#b03030", linewidths=1.5)
    axes.plot(compute_us, link_gbit, marker="*", markersize=15, color="#d62728", markeredgecolor="white")
    axes.annotate(
        "these settings",
        (compute_us, link_gbit),
        xytext=(10, 10),
        textcoords="offset points",
        bbox={"fc": "white", "ec": "none", "alpha": 0.8},
    )
    axes.set(xscale="log", yscale="log", xlabel="compute a sample, µs", ylabel="fastest link, Gbit/s")
    links = ":".join(f"{link / link_gbit:g}" for link in result.links_gbit)
    axes.set_title(
        f"Best of {sorted(plan.loads)} workers over one alone, links {links}, {result.batch:,} samples a step\n"
        "several pay to the right of the red line and above it",
        fontsize=10,
    )
    figure.colorbar(drawn, ax=axes, label="times as fast as one worker alone")
    figure.savefig(output)


def plot_grid(places: Sequence[GridPlace], output: Path) -> None:
    """The gain of several workers at each place: measured, and expected by the plan."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.figure import Figure

    batches = sorted({place.batch for place in places})
    speeds = sorted({place.links_gbit[0] for place in places})
    figure = Figure(figsize=(9.6, 1.6 + 0.8 * len(speeds)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, name, title in zip(panels, ("gain", "planned_gain"), ("measured", "expected by the plan"), strict=True):
        gains_YX = np.full((len(speeds), len(batches)), np.nan)
        for place in places:
            x, y, gain = batches.index(place.batch), speeds.index(place.links_gbit[0]), getattr(place, name)
            gains_YX[y, x] = gain
            is_dark = abs(np.log2(gain)) > DARK
            axes.text(x, y, f"{gain:.2f}×", ha="center", va="center", color="white" if is_dark else "black")
        colours = TwoSlopeNorm(0.0, -1.0, 1.0)  # of powers of two: as much slower as one, or as much faster
        drawn = axes.imshow(np.log2(gains_YX), norm=colours, cmap="RdBu", origin="lower", aspect="auto")
        axes.set_xticks(range(len(batches)), [f"{batch:,}" for batch in batches])
        axes.set_yticks(range(len(speeds)), [f"{speed:g}" for speed in speeds])
        axes.set(xlabel="samples a step", title=title)
    panels[0].set_ylabel("fastest link, Gbit/s")
    figure.suptitle("Best set of several workers over one worker alone", fontsize=11)
    scale = figure.colorbar(drawn, ax=list(panels), ticks=[-1.0, 0.0, 1.0], extend="both")
    scale.ax.set_yticklabels(["half as fast", "equal", "twice as fast"])
    figure.savefig(output, dpi=130)
