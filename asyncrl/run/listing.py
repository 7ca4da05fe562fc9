"""What runs are there, and how each stands: from their files alone."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from asyncrl.run.recorders import WINDOW, wall_s
from asyncrl.run.result import read_result
from asyncrl.run.row_files import Episode, read_metrics, read_monitor
from asyncrl.run.run_dir import RunDir, run_dirs

State = Literal["running", "finished", "unfinished", "new"]


@dataclass(frozen=True)
class RunSummary:
    """A row of `asyncrl runs`. None: not known."""

    run: RunDir
    state: State
    env_id: str
    algorithm: str
    seed: int | None
    step: int
    mean_return: float | None
    eval_return: float | None
    sps: float | None
    age_s: float  # since something was written


def list_runs(parent: Path) -> list[RunSummary]:
    """From old to new."""
    return [summarise(run) for run in run_dirs(parent)]


def summarise(run: RunDir) -> RunSummary:
    config = run.read_config()
    result = read_result(run.result) or {}
    episodes: deque[Episode] = deque(read_monitor(run.monitor), maxlen=WINDOW)
    last: dict[str, float] = {}
    for row in read_metrics(run.metrics):
        last |= {name: value for name, value in row.items() if isinstance(value, int | float)}
    steps = [last.get("step", 0), episodes[-1].step if episodes else 0, result.get("env_steps") or 0]
    return RunSummary(
        run=run,
        state=_state(run, has_result=bool(result), has_rows=bool(episodes or last)),
        env_id=str(config.get("env_id", "?")),
        algorithm=str(config.get("algorithm", result.get("algorithm", "?"))),
        seed=config.get("seed"),
        step=int(max(steps)),
        mean_return=sum(episode.ret for episode in episodes) / len(episodes) if episodes else None,
        eval_return=result.get("eval_return_mean", last.get("eval/episodic_return")),
        sps=result.get("sps", last.get("charts/SPS")),
        age_s=max(wall_s() - _written_at(run), 0.0),
    )


def _state(run: RunDir, *, has_result: bool, has_rows: bool) -> State:
    if run.is_locked():
        return "running"
    if has_result:
        return "finished"
    return "unfinished" if has_rows or run.checkpoints.exists() else "new"


def _written_at(run: RunDir) -> float:
    times = []
    for path in (run.path, run.metrics, run.monitor, run.result):
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
