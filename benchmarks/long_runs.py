"""Curves of single long runs, as JSON in benchmarks/results/: what takes an hour or more a seed.

    python -m benchmarks.long_runs pong-dqn --runs ~/runs          train what is not there yet, and report
    python -m benchmarks.long_runs pong-dqn --runs ~/runs --report  report what there is

Runs are kept in `--runs`, one folder a seed, and go on where they were broken off. A point of a curve is the mean
return of all training episodes that ended within one interval of steps, as Dopamine has it.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Final, Literal

import tyro

from asyncrl.run.row_files import read_metrics, read_monitor
from asyncrl.run.run_dir import RunDir

RESULTS: Final = Path(__file__).parent / "results"
NO_STICKY: Final = '{"repeat_action_probability": 0.0}'


@dataclass(frozen=True)
class Row:
    """A run, what is asked of its curve, and who published a figure."""

    name: str
    algorithm: str
    arguments: str
    seeds: tuple[int, ...]
    interval: int  # steps
    asked: Literal["last interval at least", "rises"]
    bar: float
    published: str

    def met(self, points: list[Point]) -> bool:
        """Of a whole run."""
        if self.asked == "rises":
            return all(before.mean_return < after.mean_return for before, after in pairwise(points))
        return points[-1].mean_return >= self.bar


@dataclass(frozen=True)
class Point:
    """Of the episodes that ended in one interval."""

    until: int
    mean_return: float
    episodes: int


ROWS: Final = {
    row.name: row
    for row in (
        Row(
            "pong-dqn",
            "dqn",
            "--preset atari-dopamine --total-timesteps 1000000 --exploration-fraction 0.25 --bf16"
            " --learner-threads 1 --act-threads 1 --lanes 1",
            (1,),
            250_000,
            "last interval at least",
            -13.9,
            "-13.9 at 1 M steps (Dopamine, DQN with Adam, mean of 5 seeds)",
        ),
        Row(
            "a2c-breakout",
            "a2c",
            "--preset atari --total-timesteps 1000000 --eval-every 0"
            """ --env-kwargs '{"repeat_action_probability": 0.0, "soft_ends": true}'"""
            " --learner-threads 1 --act-threads 1 --lanes 1",
            (1,),
            250_000,
            "rises",
            0.0,
            "279.8 at 10 M steps (RL Zoo, one run)",
        ),
        Row(
            "pong-ppo",
            "ppo",
            f"--preset atari --env-kwargs '{NO_STICKY}' --learner-threads 1 --act-threads 1 --lanes 1",
            (1, 2),
            250_000,
            "last interval at least",
            18.0,
            "20.36 ± .20 at 10 M steps (CleanRL)",
        ),
    )
}


@dataclass(frozen=True)
class Options:
    """Which row, and where its runs are kept."""

    row: tyro.conf.Positional[str]
    """One of pong-dqn, a2c-breakout, pong-ppo."""
    runs: Path
    report: bool = False
    """Train nothing."""
    jobs: Annotated[int, tyro.conf.arg(help="Seeds at once.")] = 2


def command(row: Row, seed: int, parent: Path) -> list[str]:
    """Goes on with a run that is there."""
    where = ["--seed", str(seed), "--run-dir", str(parent), "--run-name", f"{row.name}__{seed}", "--no-track"]
    return [sys.executable, "-m", "asyncrl", "train", row.algorithm, *shlex.split(row.arguments), *where]


def train(row: Row, parent: Path, jobs: int) -> None:
    """Every seed to its end, `jobs` at once."""
    waiting = list(row.seeds)
    while waiting:
        turn, waiting = waiting[:jobs], waiting[jobs:]
        running = [subprocess.Popen(command(row, seed, parent)) for seed in turn]
        statuses = [process.wait() for process in running]
        if any(statuses):
            raise SystemExit(f"a run of {row.name} failed: its last lines are above, its files in {parent}")


def points(run: RunDir, interval: int) -> list[Point]:
    """The curve; an interval in which no episode ended has none."""
    found: dict[int, list[float]] = {}
    for episode in read_monitor(run.monitor):
        found.setdefault(-(-episode.step // interval), []).append(episode.ret)
    return [Point(number * interval, fmean(returns), len(returns)) for number, returns in sorted(found.items())]


def seed_report(row: Row, seed: int, run: RunDir) -> dict[str, Any]:
    """What one run says of itself so far."""
    curve = points(run, row.interval)
    metrics = list(read_metrics(run.metrics))
    evaluations = [(each["step"], each["eval/episodic_return"]) for each in metrics if "eval/episodic_return" in each]
    result = json.loads(run.result.read_text()) if run.result.exists() else {}
    return {
        "seed": seed,
        "env_steps": max(each["step"] for each in metrics),
        "wall_s": round(max(each.get("time/wall_s", 0.0) for each in metrics), 1),
        "commit": result.get("commit", ""),
        "train_return": [asdict(point) for point in curve],
        "eval_return": evaluations,
        "met": bool(result) and row.met(curve),
    }


def report(row: Row, parent: Path) -> dict[str, Any]:
    """The row's file."""
    runs = {seed: RunDir(parent / f"{row.name}__{seed}") for seed in row.seeds}
    return {
        "row": row.name,
        "command": f"asyncrl train {row.algorithm} {row.arguments} --seed N",
        "figure": f"mean return of all training episodes that ended within {row.interval:,} steps",
        "asked": row.asked,
        "bar": row.bar,
        "published": row.published,
        "seeds": [seed_report(row, seed, run) for seed, run in runs.items() if run.metrics.exists()],
    }


def main(options: Options) -> int:
    if options.row not in ROWS:
        raise SystemExit(f"{options.row}? There are {', '.join(ROWS)}")
    row = ROWS[options.row]
    options.runs.mkdir(parents=True, exist_ok=True)
    if not options.report:
        train(row, options.runs, options.jobs)
    found = report(row, options.runs)
    (RESULTS / f"{row.name}.json").write_text(json.dumps(found, indent=1) + "\n")
    for seed in found["seeds"]:
        curve = ", ".join(f"{each['until']:,}: {each['mean_return']:.2f}" for each in seed["train_return"])
        verdict = "met" if seed["met"] else "not met"
        print(f"{row.name} seed {seed['seed']}: {curve} ({row.asked} {row.bar:g}: {verdict}; {seed['wall_s']:,.0f} s)")
    return int(not all(seed["met"] for seed in found["seeds"]))


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
