"""Runs of Q-learners, started from the command line: their ratio, their schedules over a kill, their tools."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl import cli
from asyncrl.config import DQNConfig
from asyncrl.learner.exploration import Exploration
from asyncrl.run.options import resolve
from asyncrl.run.row_files import read_metrics
from asyncrl.run.run_dir import RunDir
from asyncrl.run.running import run_to_the_end
from tests.rpc.test_resume import final, killed_after

pytestmark = [pytest.mark.rpc, pytest.mark.timeout(120)]


def settings(tmp_path: Path, algorithm: str, **changed: Any) -> DQNConfig:
    """A hundred rounds of CartPole on four lanes."""
    values: dict[str, Any] = {
        "num_envs": 8,
        "lanes": 4,
        "num_steps": 8,
        "total_timesteps": 6400,
        "hidden_sizes": [16],
        "minibatch_size": 8,
        "buffer_size": 2000,
        "learning_starts": 500,
        "checkpoint_every": 0,
        "eval_every": 0,
        "final_eval_episodes": 2,
        "log_every": 0,
        "host": "slots",
        "track": False,
        "run_dir": str(tmp_path),
        "run_name": "run",
    }
    config = resolve(algorithm, **(values | changed))
    assert isinstance(config, DQNConfig)
    return config


def updates(tmp_path: Path) -> list[dict[str, Any]]:
    """What was recorded of them."""
    return [row for row in read_metrics(RunDir(tmp_path / "run").metrics) if "replay/ratio" in row]


@pytest.mark.slow
@pytest.mark.parametrize("gradient_steps", [3, 16])
def test_async_holds_the_replay_ratio(tmp_path: Path, gradient_steps: int) -> None:
    """Gradient steps per environment step are what was asked for within 1 %, at the end and on the way there."""
    run_to_the_end("apex", settings(tmp_path, "apex", gradient_steps=gradient_steps))
    ratios = [row["replay/ratio"] for row in updates(tmp_path) if row["step"] > 3000]
    assert len(ratios) > 20
    np.testing.assert_allclose(ratios, gradient_steps / 64, rtol=0.01)


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """kill -9 in async mode: replay, ε, β and ratio go on from the checkpoint, and not from the beginning."""
    often = {"checkpoint_every": 640, "keep_checkpoints": 50}
    config = settings(tmp_path, "apex", **often, exploration_fraction=1.0, beta_final=1.0)
    killed_after("apex", config, 2600)
    at = final(config).step
    assert 0 < at <= 2600
    run_to_the_end("apex", config)
    after = [row for row in updates(tmp_path) if row["step"] >= at]
    assert len(after) > 10
    exploration = Exploration(config)
    for earlier, row in pairwise(after):
        assert row["replay/size"] > 0.8 * min(at, config.buffer_size)
        assert row["charts/epsilon"] == pytest.approx(exploration.mean_at(earlier["step"]), abs=1e-9)
        assert row["replay/beta"] == pytest.approx(0.4 + 0.6 * earlier["step"] / 6400, abs=0.01)
        assert row["replay/ratio"] == pytest.approx(config.gradient_steps / 64, rel=0.01)


def test_a_run_is_evaluated_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`asyncrl eval`, greedy and as at the end of exploration, and `asyncrl plot`."""
    run_to_the_end("dqn", settings(tmp_path, "dqn", total_timesteps=1280, prioritized=True))
    folder = str(tmp_path / "run")
    assert cli.main(["eval", folder, "--episodes", "4"]) == 0
    greedy = capsys.readouterr().out
    assert cli.main(["eval", folder, "--episodes", "4", "--sampled"]) == 0
    assert "over 4 episodes" in greedy and "over 4 episodes" in capsys.readouterr().out
    assert cli.main(["plot", folder, "--out", str(tmp_path / "drawn.png")]) == 0
    assert (tmp_path / "drawn.png").stat().st_size > 10_000
