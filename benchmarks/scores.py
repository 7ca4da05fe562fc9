"""Published scores: seeds 1 to 5 of each, all of them reported, as JSON in benchmarks/results/.

    python -m benchmarks.scores                         every row
    python -m benchmarks.scores --row cartpole-zoo      one of them

    benchmarks/results/scores.md                        what has been measured, as a table

Each seed is a process of its own, `asyncrl train`; a row's file has the command, the commit, wall times, every
seed's figure, and the bar. Figures are either training returns, the mean of the last 100 episodes as CleanRL reports
them, or those of the last checkpoint over 100 evaluation episodes, as RL Zoo does.
"""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import tyro

from asyncrl.run.row_files import read_monitor
from asyncrl.run.run_dir import RunDir, run_dirs

RESULTS: Final = Path(__file__).parent / "results"
SEEDS: Final = (1, 2, 3, 4, 5)
LAST: Final = 100


@dataclass(frozen=True)
class Row:
    """One published score and how it is reproduced."""

    name: str
    arguments: str
    bar: float
    figure: Literal["train", "eval"]
    over_seeds: Literal["mean", "median"]
    published: str
    at_most: bool = False  # a negative control: the bar is not to be passed
    algorithm: str = "ppo"

    def met(self, value: float) -> bool:
        return value <= self.bar if self.at_most else value >= self.bar


def _classic(env: str) -> str:
    return f"--env-id {env} --lanes 1 --eval-every 0 --final-eval-episodes 10"


def _preset(name: str) -> str:
    return f"--preset {name} --eval-every 0"


ROWS: Final = (
    Row("cartpole-cleanrl", _classic("CartPole-v1"), 475, "train", "mean", "490.04 ± 6.12 (CleanRL)"),
    Row("cartpole-zoo", "--preset zoo-cartpole --eval-every 0", 495, "eval", "median", "500 ± 0 (zoo, one run)"),
    Row("acrobot-cleanrl", _classic("Acrobot-v1"), -95, "train", "mean", "-86.36 ± 1.32 (CleanRL)"),
    Row("mountaincar-cleanrl", _classic("MountainCar-v0"), -200, "train", "mean", "-200 ± 0 (CleanRL)", True),
    Row(
        "mountaincar-zoo",
        "--preset zoo-mountaincar --eval-every 0",
        -125,
        "eval",
        "median",
        "-110.4 ± 19.5 (zoo, one run)",
    ),
    Row(
        "pendulum-zoo",
        "--preset zoo-pendulum --total-timesteps 300000 --eval-every 0",
        -250,
        "eval",
        "median",
        "-172 ± 104 (zoo, one run, 100 k)",
    ),
    Row(
        "cartpole-hidden-gru",
        "--preset recurrent --env-id hidden=benchmarks.score_envs:hidden_velocities --eval-every 0",
        350,
        "eval",
        "median",
        ">= 350 within 2 M (RLlib)",
    ),
    Row(
        "cartpole-masked",
        "--env-id forbidden=benchmarks.score_envs:forbidden_actions --lanes 1 --eval-every 0",
        475,
        "train",
        "mean",
        "as cartpole-cleanrl: parity",
    ),
    Row(
        "dqn-cartpole-cleanrl",
        _classic("CartPole-v1"),
        470,
        "train",
        "mean",
        "488.69 ± 16.11 (CleanRL)",
        algorithm="dqn",
    ),
    Row("c51-cartpole", _classic("CartPole-v1"), 440, "train", "mean", "481.20 ± 20.53 (CleanRL)", algorithm="c51"),
    Row("dqn-cartpole-zoo", _preset("zoo-cartpole"), 495, "eval", "median", "500 ± 0 (zoo, one run)", algorithm="dqn"),
    Row("dqn-acrobot", _preset("acrobot"), -100, "eval", "median", "-76.6 ± 11.8 (zoo, one run)", algorithm="dqn"),
    Row(
        "dqn-mountaincar-zoo",
        _preset("zoo-mountaincar"),
        -120,
        "eval",
        "median",
        "-100.8 ± 9.9 (zoo, one run)",
        algorithm="dqn",
    ),
    Row(
        "apex-cartpole",
        _preset("cartpole"),
        450,
        "eval",
        "median",
        "none: a bar of ours, 8 lanes and 200 k steps",
        algorithm="apex",
    ),
    Row(
        "impala-cartpole",
        "--preset fast",
        450,
        "eval",
        "median",
        ">= 450 within 2 M (RLlib); here within 60 s, too",
        algorithm="impala",
    ),
    Row(
        "appo-cartpole",
        "--preset fast",
        450,
        "eval",
        "median",
        ">= 450 within 2 M (RLlib); here within 60 s, too",
        algorithm="appo",
    ),
)


@dataclass(frozen=True)
class Options:
    """Which rows, and how many processes at once."""

    row: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Repeatable; default: all."""
    seeds: tuple[int, ...] = SEEDS
    jobs: int = 2
    runs: Path | None = None
    """Where the runs are kept; default: a temporary directory."""


def train(row: Row, seed: int, parent: Path) -> dict[str, Any]:
    """One seed, and what came of it."""
    name = f"{row.name}__{seed}"
    command = [sys.executable, "-m", "asyncrl", "train", row.algorithm, *shlex.split(row.arguments)]
    command += ["--seed", str(seed), "--run-dir", str(parent), "--run-name", name, "--no-track"]
    began = time.monotonic()
    with (parent / f"{name}.log").open("wb") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    (folder,) = run_dirs(parent / name)
    return {"seed": seed, "value": _figure(row, folder), "wall_s": round(time.monotonic() - began, 1)} | _result(folder)


def _figure(row: Row, folder: RunDir) -> float:
    if row.figure == "train":
        return statistics.fmean(episode.ret for episode in read_monitor(folder.monitor)[-LAST:])
    return float(json.loads(folder.result.read_text())["eval_return_mean"])


def _result(folder: RunDir) -> dict[str, Any]:
    found = json.loads(folder.result.read_text())
    rebuilt = sum('"slot_rebuilt"' in line for line in folder.metrics.read_text().splitlines())
    names = ("env_steps", "sps", "eval_return_mean", "eval_return_std", "eval_episodes", "commit")
    return {name: found[name] for name in names} | {"slots_rebuilt": rebuilt}


def report(row: Row, seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """The row's file."""
    values = [seed["value"] for seed in seeds]
    value = statistics.fmean(values) if row.over_seeds == "mean" else statistics.median(values)
    figure = f"mean of the last {LAST} training episodes" if row.figure == "train" else "final checkpoint, 100 episodes"
    return {
        "row": row.name,
        "command": f"asyncrl train {row.algorithm} {row.arguments} --seed N",
        "figure": f"{row.over_seeds} over seeds of: {figure}",
        "value": value,
        "spread": [min(values), max(values)],
        "bar": row.bar,
        "met": row.met(value),
        "published": row.published,
        "seeds": seeds,
    }


def table(folder: Path) -> str:
    """All rows that have a file there, for people, in the order of ROWS."""
    lines = ["# Scores", "", "Made by `python -m benchmarks.scores` of the files beside it.", ""]
    lines += ["| row | figure | value | worst and best seed | bar | published |", "|---|---|---|---|---|---|"]
    for row in ROWS:
        path = folder / f"{row.name}.json"
        if path.exists():
            found = json.loads(path.read_text())
            low, high = found["spread"]
            bar = f"{'≤' if row.at_most else '≥'} {found['bar']:g}: {'met' if found['met'] else '**missed**'}"
            shown = (found["row"], found["figure"], f"{found['value']:.1f}", f"{low:.1f} to {high:.1f}", bar)
            lines.append("| " + " | ".join((*shown, found["published"])) + " |")
    return "\n".join(lines) + "\n"


def main(options: Options) -> int:
    known = {row.name: row for row in ROWS}
    wrong = [name for name in options.row if name not in known]
    if wrong:
        raise SystemExit(f"--row {wrong[0]}? There are {', '.join(known)}")
    parent = options.runs or Path(tempfile.mkdtemp(prefix="asyncrl-scores-"))
    parent.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(exist_ok=True)
    all_met = True
    for row in [known[name] for name in options.row] or ROWS:
        with ThreadPoolExecutor(options.jobs) as pool:
            seeds = list(pool.map(lambda seed, row=row: train(row, seed, parent), options.seeds))
        found = report(row, seeds)
        (RESULTS / f"{row.name}.json").write_text(json.dumps(found, indent=1) + "\n")
        (RESULTS / "scores.md").write_text(table(RESULTS))
        values = ", ".join(f"{seed['value']:.2f}" for seed in seeds)
        print(f"{row.name}: {found['value']:.2f} (bar {row.bar:g}, {'met' if found['met'] else 'MISSED'}): {values}")
        all_met &= bool(found["met"])
    return int(not all_met)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
