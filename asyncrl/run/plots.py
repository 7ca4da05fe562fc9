"""`plot.png`: return, losses, speed and policy lag of runs over environment steps, and how often each lag was.

Needs matplotlib.

* Without matplotlib the error names what to install (test_without_matplotlib_the_error_names_the_extra).
* Evaluations alone are a picture, too (test_evaluations_alone_are_drawn).
* Drawing needs no display, and leaves matplotlib's global state alone (test_drawing_leaves_no_state).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from asyncrl.errors import ConfigError
from asyncrl.run.curves import EVALUATION, LAG, RETURN, Curve, RunCurves, merged, read_curves, settings
from asyncrl.run.run_dir import RunDir

# title -> names, of which those that are there are drawn
PANELS: Final[dict[str, tuple[str, ...]]] = {
    "return": (RETURN, EVALUATION),
    "value loss": ("losses/value_loss", "losses/td_loss", "losses/qf_loss"),
    "policy loss": ("losses/policy_loss", "losses/actor_loss"),
    "entropy": ("losses/entropy", "charts/epsilon", "losses/alpha"),
    "steps per second": ("charts/SPS",),
    "policy lag, versions": ("async/policy_lag_mean",),
}
BARS: Final = "share of steps by policy lag"
COLUMNS: Final = 3
# In inches.
PANEL: Final = (5.2, 3.4)
MARGINS: Final = (0.65, 0.15, 0.55, 0.3)  # of a panel: left, right, bottom, top
TITLE: Final = 0.4
LEGEND_LINE: Final = 0.25
MOST_POINTS: Final = 2000  # of one line: more than there are pixels


def plot_runs(runs: Sequence[RunDir], path: Path) -> None:
    """Writes the picture. Blocks for a second or two. ConfigError: no matplotlib, or nothing to draw."""
    figure_module, agg = _matplotlib()
    found = [read_curves(run) for run in runs]
    groups = settings(found)
    panels = [title for title, names in PANELS.items() if any(name in run.curves for run in found for name in names)]
    if any(LAG in run.counts for run in found):
        panels.append(BARS)
    if not panels:
        raise ConfigError(f"nothing is recorded yet in {', '.join(str(run.path) for run in runs)}")
    columns = min(COLUMNS, len(panels))
    num_rows = -(-len(panels) // columns)
    legend = LEGEND_LINE * -(-len(groups) // 2) if len(groups) > 1 else 0.0
    width, height = PANEL[0] * columns, PANEL[1] * num_rows + TITLE + legend
    figure = figure_module.Figure(figsize=(width, height), dpi=110)
    agg.FigureCanvasAgg(figure)
    figure.suptitle(_title(groups), fontsize=12, x=0.01, y=1 - 0.1 / height, ha="left")
    left, right, bottom, top = MARGINS
    # Places by hand: to have matplotlib look for them takes as long as all the rest.
    figure.subplots_adjust(
        left / width,
        (legend + bottom) / height,
        1 - right / width,
        1 - (TITLE + top) / height,
        wspace=(left + right) / (PANEL[0] - left - right),
        hspace=(bottom + top) / (PANEL[1] - bottom - top),
    )
    for index, title in enumerate(panels):
        axes = figure.add_subplot(num_rows, columns, index + 1)
        if title == BARS:
            _bars(axes, groups)
        else:
            _draw(axes, title, groups)
    if len(groups) > 1:
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower left", ncols=2, frameon=False, fontsize=9)
    figure.savefig(path, format="png")


def _draw(axes: Any, title: str, groups: Mapping[str, Sequence[RunCurves]]) -> None:
    for number, (label, runs) in enumerate(groups.items()):
        for name in PANELS[title]:
            curves = [run.curves[name] for run in runs if name in run.curves]
            if curves:
                _line(axes, merged(curves), f"C{number % 10}", f"{label}, {_seeds(len(curves))}")
                break
        if title == "return":
            for run in runs:
                points = run.curves.get(EVALUATION)
                if points is not None:
                    axes.plot(points.steps, points.values, "o", ms=3, mfc="white", color=f"C{number % 10}")
    _dress(axes, "return, mean of 100 episodes (o: evaluation)" if title == "return" else title, "environment steps")
    axes.xaxis.set_major_formatter(_steps_text)
    axes.xaxis.set_major_locator(import_module("matplotlib.ticker").MaxNLocator(6))
    axes.margins(x=0.02)
    if title == "steps per second":
        axes.set_ylim(bottom=0)
    if title == "policy lag, versions":
        top = max(axes.get_ylim()[1], 1.0)
        axes.set_ylim(-0.03 * top, top)  # no lag at all is seen as a line, too


def _bars(axes: Any, groups: Mapping[str, Sequence[RunCurves]]) -> None:
    """Of all seeds of a setting together."""
    for number, runs in enumerate(groups.values()):
        counts = sum((run.counts.get(LAG, Counter()) for run in runs), Counter[int]())
        shares = [counts[lag] / counts.total() for lag in counts]
        axes.bar(list(counts), shares, width=0.9, color=f"C{number % 10}", alpha=1.0 if len(groups) == 1 else 0.5)
    axes.xaxis.set_major_locator(import_module("matplotlib.ticker").MaxNLocator(8, integer=True))
    _dress(axes, BARS, "versions between acting and learning")


def _dress(axes: Any, title: str, below: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(below, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _line(axes: Any, curve: Curve, color: str, label: str) -> None:
    every = max(len(curve.steps) // MOST_POINTS, 1)
    # From the end backwards: the last point is the one that people look for.
    keep = np.arange(len(curve.steps) - 1, -1, -every)[::-1]
    axes.plot(curve.steps[keep], curve.values[keep], color=color, lw=1.4, label=label)
    if curve.low is not None and curve.high is not None:
        axes.fill_between(curve.steps[keep], curve.low[keep], curve.high[keep], color=color, alpha=0.18, lw=0)


def _title(groups: Mapping[str, Sequence[RunCurves]]) -> str:
    if len(groups) > 1:
        return "mean, and the range between seeds"
    ((label, runs),) = groups.items()
    if len(runs) > 1:
        return f"{label}, {_seeds(len(runs))}: mean and range"
    seed = runs[0].config.get("seed")
    return label if seed is None else f"{label}, seed {seed}"


def _seeds(count: int) -> str:
    return f"{count} seeds" if count != 1 else "1 seed"


def _steps_text(value: float, _: object = None) -> str:
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _matplotlib() -> tuple[Any, Any]:
    try:
        return import_module("matplotlib.figure"), import_module("matplotlib.backends.backend_agg")
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'asyncrl[plot]'") from None
