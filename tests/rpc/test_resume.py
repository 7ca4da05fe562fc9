"""A run that is killed and goes on, against one that was never killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from asyncrl.config import RunConfig
from asyncrl.run.checkpoint_parts import Arrays, Blocks, Part, Tensors
from asyncrl.run.checkpoints import Checkpoint, load_newest
from asyncrl.run.options import resolve
from asyncrl.run.row_files import read_metrics
from asyncrl.run.run_dir import RunDir
from asyncrl.run.running import run_to_the_end

pytestmark = [pytest.mark.rpc, pytest.mark.timeout(120)]

ROUNDS = 12
REPLAYING: Final[dict[str, Any]] = {  # a ring that goes round, and gradient steps from the second round on
    "buffer_size": 640,
    "learning_starts": 150,
    "gradient_steps": 3,
    "target_network_frequency": 300,
    "hidden_sizes": [16],
    "log_every": 0,
}
STALE: Final[dict[str, Any]] = {"optimizer": "rmsprop", "rms_momentum": 0.5, "normalize_reward": True}
ALGORITHMS = {"ppo": {}, "impala": STALE, "dqn": REPLAYING | {"double": True}, "rainbow": REPLAYING, "apex": REPLAYING}


def settings(tmp_path: Path, name: str, algorithm: str = "ppo", **changed: Any) -> RunConfig:
    """Twelve rounds of 8 x 16 steps, a checkpoint after each."""
    values: dict[str, Any] = {
        "num_envs": 8,
        "lanes": 2,
        "num_steps": 16,
        "total_timesteps": ROUNDS * 128,
        "checkpoint_every": 1,
        "keep_checkpoints": 50,
        "eval_every": 0,
        "final_eval_episodes": 2,
        "host": "slots",
        "track": False,
        "run_dir": str(tmp_path),
        "run_name": name,
        "mode": "sync",
    }
    return resolve(algorithm, **(values | ALGORITHMS[algorithm] | changed))


# Kills its own process group, servers and lanes with it, when a checkpoint of more steps than that is about to count.
# It counts no checkpoints: where the disk is slow, rounds go by without one.
DOOMED: Final = """
import os, signal, sys
from pathlib import Path

most = int(sys.argv.pop())

def audit(event, args):
    if event == "os.rename" and Path(args[1]).name.startswith("step_"):
        if int(Path(args[1]).name.removeprefix("step_")) > most:
            os.killpg(0, signal.SIGKILL)

sys.addaudithook(audit)
from asyncrl.cli import main
main()
"""


def killed_after(algorithm: str, config: RunConfig, steps: int) -> int:
    """Run it in a process that dies while it writes the first checkpoint after so many steps; the round of the last."""
    file = Path(config.run_dir) / "settings.yaml"
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(config).items()}
    file.write_text(json.dumps(values))
    command = [sys.executable, "-c", DOOMED, "train", algorithm, "--config", str(file), str(steps)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, start_new_session=True, check=False)
    assert done.returncode == -signal.SIGKILL
    return int(load_newest(Path(config.run_dir) / config.run_name / "checkpoints").manifest.info["round"])


def final(config: RunConfig) -> Checkpoint:
    return load_newest(Path(config.run_dir) / config.run_name / "checkpoints")


def curves(config: RunConfig) -> list[dict[str, Any]]:
    """What the run recorded of its updates, without what is of the clock."""
    rows = read_metrics(RunDir(Path(config.run_dir) / config.run_name).metrics)
    return [
        {name: value for name, value in row.items() if name.startswith("losses/") or name == "step"}
        for row in rows
        if any(name.startswith("losses/") for name in row)
    ]


def episodes(config: RunConfig) -> list[list[str]]:
    """Return, length and step of each, without what is of the clock."""
    lines = RunDir(Path(config.run_dir) / config.run_name).monitor.read_text().splitlines()[2:]
    return [line.split(",")[:2] + line.split(",")[3:] for line in lines]


def assert_equal(ours: Part, theirs: Part) -> None:
    """Bit for bit."""
    if isinstance(ours, Tensors | Arrays):
        assert isinstance(theirs, Tensors | Arrays)
        assert set(ours.arrays) == set(theirs.arrays)
        for name, array in ours.arrays.items():
            np.testing.assert_array_equal(array, theirs.arrays[name], err_msg=name)
    elif isinstance(ours, Blocks):
        assert isinstance(theirs, Blocks)
        filled = [bool(key) for key in ours.keys]
        assert filled == [bool(key) for key in theirs.keys]
        assert any(filled)
        assert all(ours.read(block) == theirs.read(block) for block, has_rows in enumerate(filled) if has_rows)
    else:
        assert ours == theirs


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(name, marks=pytest.mark.slow if name in ("impala", "dqn", "apex") else ()) for name in ALGORITHMS],
)
def test_exact_resume(tmp_path: Path, algorithm: str) -> None:
    """Everything that is learned with, and the curves, equal those of a run that made its lanes anew at that round:
    weights, optimiser, generators, counters; of Q-learners also the target, the replay and its priorities."""
    killed = settings(tmp_path, "killed", algorithm)
    at = killed_after(algorithm, killed, 4 * 128)
    assert 0 < at <= 4
    run_to_the_end(algorithm, killed)
    whole = settings(tmp_path, "whole", algorithm)
    run_to_the_end(algorithm, whole, recreate_at=[at])
    first, second = final(killed), final(whole)
    assert first.step == second.step
    of_learner = {name for name in first.parts if name.startswith(("learner", "replay"))}
    assert len(of_learner) == (2 if algorithm in ("ppo", "impala") else 4)
    for name in of_learner:
        assert_equal(first.parts[name], second.parts[name])
    assert curves(killed) == curves(whole)
    assert len(curves(whole)) >= ROUNDS - 1
    assert episodes(killed) == episodes(whole) != []
    untouched = settings(tmp_path, "untouched", algorithm)
    run_to_the_end(algorithm, untouched)
    before = [[row for row in curves(config) if row["step"] <= at * 128] for config in (untouched, whole)]
    assert before[0] == before[1]
    assert curves(untouched)[len(before[0]) :] != curves(whole)[len(before[1]) :]


def test_sync_runs_repeat_themselves(tmp_path: Path) -> None:
    """Two runs of one seed are equal; another seed is another run."""
    runs = [settings(tmp_path, name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    for config in runs:
        run_to_the_end("ppo", config)
    assert curves(runs[0]) == curves(runs[1]) != curves(runs[2])
    assert episodes(runs[0]) == episodes(runs[1]) != episodes(runs[2])
