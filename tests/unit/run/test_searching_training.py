"""Runs whose lanes look ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.config import PPOConfig
from asyncrl.errors import ConfigError
from asyncrl.records import Array
from asyncrl.run.searching_training import plan_of, searching
from tests.unit.run.tiny_training import TinyRun, tiny_config

pytestmark = [pytest.mark.rpc, pytest.mark.timeout(90)]

SEARCH: dict[str, Any] = {
    "search_sims": 6,
    "search_sims_first": 2,
    "search_rng": "frozen",
    "search_waves": 3,
    "total_timesteps": 128,
    "host": "auto",
}


async def trained(path: Path, **changed: Any) -> tuple[TinyRun, dict[str, Array]]:
    """A run, and what its learner came to."""
    path.mkdir()
    run = TinyRun(path, tiny_config(path, **(SEARCH | changed)))
    await run.run()
    assert run.training.learning is not None
    assert run.training.progress.steps == 128
    return run, dict(run.training.learning.save().arrays)


@pytest.mark.parametrize("search", ["exit", pytest.param("ppo-aux", marks=pytest.mark.slow)])
async def test_searched_runs_are_equal_bit_for_bit(tmp_path: Path, search: str) -> None:
    """Two runs of four rounds on servers of their own: the same weights; with another seed others."""
    _, one = await trained(tmp_path / "one", search=search)
    _, two = await trained(tmp_path / "two", search=search)
    _, other = await trained(tmp_path / "other", search=search, seed=2)
    assert one.keys() == two.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name], err_msg=name)
    assert any((one[name] != other[name]).any() for name in one)


@pytest.mark.parametrize(("search", "share"), [("exit", 1.0), ("ppo-aux", 0.25)])
async def test_searches_teach(tmp_path: Path, search: str, share: float) -> None:
    """What is told of each round: how much of it was searched, and how far the policy is from what was found."""
    run, _ = await trained(tmp_path / "run", search=search, eval_every=0)
    rows = [row for _, row in run.notes.rows if "losses/search_loss" in row]
    assert len(rows) == 4
    found = np.mean([row["search/share"] for row in rows])
    assert found == 1.0 if share == 1.0 else abs(found - share) < 0.15  # 128 rows: four standard deviations
    assert all(0.0 < row["losses/search_loss"] < 1.0 for row in rows)


async def test_a_game_of_two_is_learned_from_both_sides(tmp_path: Path) -> None:
    """Tic-tac-toe, without luck of any kind but that of the players: rounds are trained on, and nothing fails."""
    game = {"env_id": "game=examples.tictactoe:make_env", "search_algorithm": "puct", "gamma": 1.0, "gae_lambda": 1.0}
    run, arrays = await trained(tmp_path / "run", search="exit", **game)
    assert run.notes.returns
    assert set(run.notes.returns) <= {0.0, 1.0}  # of the mover: nobody ever plays onto a stone
    assert all(np.isfinite(array).all() for array in arrays.values())
    assert not run.notes.of_kind("lane_lost")


async def test_what_cannot_be_searched_is_said(tmp_path: Path) -> None:
    """An environment whose actions are no list."""
    run = TinyRun(tmp_path, tiny_config(tmp_path, search="ppo-aux", env_id="Pendulum-v1", host="auto"))
    with pytest.raises(ConfigError, match="one Discrete action"):
        await run.run()


def test_plans_follow_the_configuration() -> None:
    """Simulations by how often slots have acted; noise in the prior for PUCT alone; every probability is known."""
    config = PPOConfig(search="exit", num_envs=10, total_timesteps=10_000, search_sims_first=2, search_sims=10)
    assert [plan_of(config, step).num_simulations for step in (0, 250, 500, 900)] == [2, 6, 10, 10]
    gumbel, puct = plan_of(config, 0), plan_of(PPOConfig(search="exit", search_algorithm="puct"), 0)
    assert (gumbel.noise_fraction, puct.noise_fraction) == (0.0, 0.25)
    assert gumbel.temperature > 0
    assert searching(PPOConfig()) is None
