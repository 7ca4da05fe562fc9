"""The examples run, and do what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from asyncrl.run.options import resolve
from asyncrl.run.running import run_to_the_end
from examples import async_fleet, board_network, my_simulator, one_line, remote_vector_env, train_ppo
from tests.rpc.serving import serving

pytestmark = pytest.mark.rpc


def test_remote_vector_env() -> None:
    """Random CartPole returns are about 22."""
    assert 15 < remote_vector_env.main(num_steps=200) < 35


def test_remote_vector_env_on_a_server_that_runs() -> None:
    """An address instead of a server of its own."""
    with serving("CartPole-v1") as address:
        assert remote_vector_env.main(address, num_steps=200) > 10


async def test_async_fleet() -> None:
    """Every lane is heard."""
    assert sorted(await async_fleet.main(num_arrivals=100)) == [0, 1, 2, 3]


def test_my_simulator() -> None:
    """Walking right gets there."""
    assert my_simulator.main() > 0.8


def test_one_line() -> None:
    """A linear policy learns something within a few thousand steps."""
    history = one_line.main(num_iterations=25)
    assert history[-1] > 1.3 * history[1]


def test_train_ppo(tmp_path: Path) -> None:
    """A few rounds of the preset; the files are where the result says."""
    result = train_ppo.main(run_dir=str(tmp_path), total_timesteps=4096, final_eval_episodes=4, track=False)
    assert (result.env_steps, result.eval_episodes) == (4096, 4)
    assert (tmp_path / result.run / str(result.checkpoint)).is_dir()


def test_a_board_has_a_network_of_its_own(tmp_path: Path) -> None:
    """Self-play of Connect-4 learns with it, by its import path; a stone in a corner reaches the features."""
    config = resolve(
        "ppo",
        env_id="connect4=examples.connect4:make_env",
        network="examples.board_network:build",
        search="exit",
        num_envs=8,
        num_steps=8,
        search_sims=4,
        total_timesteps=256,
        eval_every=0,
        final_eval_episodes=1,
        run_dir=str(tmp_path),
    )
    assert run_to_the_end("ppo", config, say=lambda _: None).result.env_steps == 256
    network = board_network.BoardNetwork(2, 6, 7)
    boards = torch.zeros(2, 2, 6, 7, dtype=torch.uint8)
    boards[1, 1, 0, 6] = 1
    features = network([boards])
    assert features.shape == (2, network.num_features)
    assert not torch.equal(features[0], features[1])
