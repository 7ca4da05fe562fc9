"""A run's policy, played again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import CheckpointMismatch, ConfigError, NoCheckpoint
from asyncrl.run.manifests import best_of
from asyncrl.run.playing import PlayWish, play_run
from asyncrl.run.run_dir import RunDir
from asyncrl.run.running import Ran, run_to_the_end
from tests.unit.run.tiny_training import tiny_config

pytestmark = [pytest.mark.rpc, pytest.mark.timeout(90)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Some rounds with normalised observations, evaluated beside and at the end."""
    wish: dict[str, Any] = {"normalize_obs": True, "eval_every": 160, "eval_episodes": 3, "final_eval_episodes": 6}
    config = tiny_config(tmp_path_factory.mktemp("runs"), total_timesteps=640, **wish)
    return run_to_the_end("ppo", config)


async def test_a_run_is_played_as_it_was_evaluated(ran: Ran) -> None:
    """The same episodes on as many environments are the result's own; sampled actions or another seed are not."""
    folder = RunDir(ran.folder)
    again = await play_run(folder, PlayWish(episodes=6, num_envs=6))
    assert again.mean == ran.result.eval_return_mean
    assert again.std == ran.result.eval_return_std
    others = [PlayWish(episodes=6, num_envs=6, seed=5), PlayWish(episodes=6, num_envs=6, deterministic=False)]
    for wish in others:
        assert (await play_run(folder, wish)).returns != again.returns


async def test_the_best_is_played(ran: Ran) -> None:
    """With the number of environments that its evaluation had, it scores what is written beside the mark."""
    best = best_of(ran.folder / "checkpoints")
    assert best is not None
    final = best[1] == ran.result.eval_return_mean
    wish = PlayWish(which="best", episodes=6 if final else 3, num_envs=6 if final else 2)
    assert (await play_run(RunDir(ran.folder), wish)).mean == best[1]


async def test_what_cannot_be_played_is_said(tmp_path: Path, ran: Ran) -> None:
    """No checkpoint, no best one, an environment with other spaces."""
    folder = RunDir(tmp_path)
    folder.write_config(RunDir(ran.folder).read_config())
    with pytest.raises(NoCheckpoint, match="there is no checkpoint"):
        await play_run(folder, PlayWish())
    with pytest.raises(ConfigError, match="never evaluated; take --which latest"):
        await play_run(folder, PlayWish(which="best"))
    (tmp_path / "checkpoints").symlink_to(ran.folder / "checkpoints")
    folder.write_config({**RunDir(ran.folder).read_config(), "env_id": "Acrobot-v1"})
    with pytest.raises(CheckpointMismatch, match="trained on CartPole-v1 with other spaces than Acrobot-v1"):
        await play_run(folder, PlayWish(episodes=1))
