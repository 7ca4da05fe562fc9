"""The examples run, and do what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import async_fleet, my_simulator, one_line, remote_vector_env, train_ppo
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
