"""The curves of runs, from their files: no torch, no TensorBoard, no plotting library.

* A curve of several seeds spans the steps that all of them reached (test_seeds_are_compared_where_all_of_them_are).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncrl.run.recorders import WINDOW
from asyncrl.run.row_files import read_metrics, read_monitor
from asyncrl.run.run_dir import RunDir

Floats = npt.NDArray[np.float64]
POINTS: Final = 400  # of a curve over several seeds
RETURN: Final = "return"
EVALUATION: Final = "eval/episodic_return"
LAG: Final = "async/policy_lag"  # counts; its mean and its maximum are curves
# What makes no other setting: seeds, places, and what only watches.
IGNORED: Final = frozenset(
    {"seed", "run_dir", "run_name", "resume", "servers", "tb_style", "track"}
    | {"keep_checkpoints", "checkpoint_every", "checkpoint_minutes"}
)


@dataclass(frozen=True)
class Curve:
    """Values at ascending steps, both [N]; `low` and `high` where several seeds are in it."""

    steps: Floats
    values: Floats
    low: Floats | None = None
    high: Floats | None = None


@dataclass
class RunCurves:
    """One run's curves by name; `return` is the mean over the last 100 episodes. `counts`: by name, how often each
    value came up in the whole run."""

    run: RunDir
    config: dict[str, Any]
    curves: dict[str, Curve] = field(default_factory=dict)
    counts: dict[str, Counter[int]] = field(default_factory=dict)


def read_curves(run: RunDir) -> RunCurves:
    found = RunCurves(run, run.read_config())
    episodes = read_monitor(run.monitor)
    if episodes:
        steps = np.array([episode.step for episode in episodes], float)
        found.curves[RETURN] = Curve(steps, moving_mean(np.array([episode.ret for episode in episodes]), WINDOW))
    points: dict[str, list[tuple[float, float]]] = {}
    for row in read_metrics(run.metrics):
        for name, value in row.items():
            if name not in ("step", "time") and isinstance(value, int | float) and not isinstance(value, bool):
                points.setdefault(name, []).append((float(row["step"]), float(value)))
            elif isinstance(value, dict) and (counts := _counts(value)) is not None:
                found.counts.setdefault(name, Counter()).update(counts)
    for name, pairs in points.items():
        array = np.array(sorted(pairs, key=lambda pair: pair[0]))
        found.curves[name] = Curve(array[:, 0], array[:, 1])
    return found


def _counts(value: dict[str, Any]) -> dict[int, int] | None:
    """None: it counts something else, or nothing."""
    try:
        return {int(key): int(count) for key, count in value.items()}
    except (TypeError, ValueError):
        return None


def moving_mean(values: Floats, window: int) -> Floats:
    """[N] -> [N]: of the last `window` values, fewer at the beginning."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - window, 0)
    means: Floats = (sums[ends] - sums[begins]) / (ends - begins)
    return means


def merged(curves: Sequence[Curve]) -> Curve:
    """Mean, minimum and maximum over seeds, at steps that all of them reached."""
    if len(curves) == 1:
        return curves[0]
    first = max(curve.steps[0] for curve in curves)
    last = min(curve.steps[-1] for curve in curves)
    if last < first:
        return max(curves, key=lambda curve: len(curve.steps))
    steps = np.linspace(first, last, POINTS)
    rows = np.stack([np.interp(steps, curve.steps, curve.values) for curve in curves])
    return Curve(steps, rows.mean(axis=0), rows.min(axis=0), rows.max(axis=0))


def settings(runs: Iterable[RunCurves]) -> dict[str, list[RunCurves]]:
    """Runs that differ in the seed alone, under a label of what sets them apart from the others."""
    groups: dict[str, list[RunCurves]] = {}
    for run in runs:
        kept = {name: value for name, value in run.config.items() if name not in IGNORED}
        groups.setdefault(repr(sorted(kept.items())), []).append(run)
    members = list(groups.values())
    labels = _labels([group[0].config for group in members])
    return dict(zip(labels, members, strict=True))


def _labels(configs: Sequence[dict[str, Any]]) -> list[str]:
    """`env_id algorithm`, and whatever else differs; numbered where that is not enough."""
    names = sorted({name for config in configs for name in config} - IGNORED - {"env_id", "algorithm"})
    apart = [name for name in names if len({repr(config.get(name)) for config in configs}) > 1]
    labels: list[str] = []
    for config in configs:
        head = f"{config.get('env_id', 'run')} {config.get('algorithm', '')}".strip()
        rest = ", ".join(f"{name}={config.get(name)}" for name in apart[:3])
        label = f"{head} ({rest})" if rest else head
        labels.append(label)
    return [
        f"{label} #{labels[:index].count(label) + 1}" if label in labels[:index] else label
        for index, label in enumerate(labels)
    ]
