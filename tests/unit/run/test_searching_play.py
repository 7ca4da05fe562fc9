"""Whole episodes, played by looking ahead."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Literal

import pytest

from asyncrl.config import RunConfig
from asyncrl.errors import CheckpointMismatch, ConfigError
from asyncrl.run.checkpoints import load_newest
from asyncrl.run.examining import EVAL_SEED
from asyncrl.run.playing import PlayWish, play_run
from asyncrl.run.run_dir import RunDir
from asyncrl.run.running import Ran, run_to_the_end
from asyncrl.run.searching_play import SearchPlayWish, play_by_search
from asyncrl.run.session import saved_config
from asyncrl.search import SearchConfig
from tests.rig.processes import EnvServerProcess
from tests.unit.run.tiny_training import tiny_config

pytestmark = [pytest.mark.rpc, pytest.mark.timeout(90)]

CARTPOLE = RunConfig(env_id="CartPole-v1")
PENDULUM = RunConfig(env_id="Pendulum-v1", env_kwargs='{"max_episode_steps": 80}')
LAKE = RunConfig(env_id="FrozenLake-v1", env_kwargs='{"is_slippery": false}')
ROLLOUTS = SearchConfig(num_simulations=150, waves=8, leaf="rollout", rollout_steps=100, rng="frozen")
JUDGED = SearchConfig(algorithm="gumbel", num_simulations=6, waves=4, rng="frozen", gumbel_scale=0.0)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A run that has learned nothing much."""
    return run_to_the_end("ppo", tiny_config(tmp_path_factory.mktemp("runs"), total_timesteps=320, host="auto"))


async def test_a_plan_is_played_where_it_was_made() -> None:
    """Four episodes on the lake without luck, without a network: each reaches the other shore, and each is told."""
    heard: list[tuple[float, int]] = []
    wish = SearchPlayWish(plan=ROLLOUTS, episodes=4, num_envs=2)
    played = await play_by_search(LAKE, wish, None, None, lambda ret, length: heard.append((ret, length)))
    assert played.evaluation.returns == (1.0, 1.0, 1.0, 1.0)
    assert sorted(heard) == sorted(zip(played.evaluation.returns, played.evaluation.lengths, strict=True))
    assert played.stats.roots >= sum(played.evaluation.lengths)
    assert played.stats.simulations == 150 * played.stats.roots
    assert not played.stats.failures


@pytest.mark.parametrize(
    ("config", "plan", "least", "most"),
    [
        (CARTPOLE, SearchConfig(num_simulations=6, leaf="zero", rng="frozen"), 1.0, 1.0),
        (CARTPOLE, SearchConfig(num_simulations=6, leaf="zero", rng="open_loop"), 1.2, 6.0),
        (PENDULUM, SearchConfig(num_simulations=6, num_sampled=4, leaf="rollout", rollout_steps=5), 5.5, 6.0),
    ],
    ids=["one step", "the whole way", "a rollout behind it"],
)
async def test_every_step_of_a_simulator_is_counted(
    config: RunConfig, plan: SearchConfig, least: float, most: float
) -> None:
    """As many for each entry as it makes: a step, the whole way from the root, a step and a rollout of five."""
    played = await play_by_search(config, SearchPlayWish(plan=plan, episodes=1, num_envs=1), None)
    counts = played.counts
    assert counts.entries
    assert least * counts.entries <= counts.steps <= most * counts.entries


async def test_states_travel_to_servers_for_searching(tmp_path: Path) -> None:
    """Two servers with one key: what is played on the one is what is found on the other, step by step."""
    key = tmp_path / "key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    lake = ['FrozenLake-v1{"is_slippery": false}']
    option = ["--snapshot-key-file", str(key)]
    alone = await play_by_search(LAKE, SearchPlayWish(plan=ROLLOUTS, episodes=1, num_envs=1), None)
    async with (
        EnvServerProcess(tmp_path, envs=lake, options=option, name="one") as one,
        EnvServerProcess(tmp_path, envs=lake, options=option, name="two") as two,
    ):
        config = RunConfig(env_id="FrozenLake-v1")
        wish = SearchPlayWish(plan=ROLLOUTS, episodes=1, num_envs=1, search_servers=two.address)
        played = await play_by_search(config, wish, one.address)
    assert played.evaluation == alone.evaluation


async def test_a_run_judges_as_it_plays(ran: Ran) -> None:
    """Its newest weights, on the seeds of its own evaluations; the same again, and through `play_run`."""
    folder = RunDir(ran.folder)
    algorithm, config = saved_config(folder)
    judge = (algorithm, load_newest(folder.checkpoints))
    wish = SearchPlayWish(plan=JUDGED, episodes=3, num_envs=3, checkpoint=judge, seed=config.seed + EVAL_SEED)
    played = [(await play_by_search(config, wish, None)).evaluation for _ in range(2)]
    assert played[0] == played[1]
    assert await play_run(folder, PlayWish(episodes=3, num_envs=3, plan=JUDGED)) == played[0]


@pytest.mark.parametrize(("env_id", "length"), [("Pendulum-v1", 20), ("locks=tests.unit.search.locks:make", 10)])
@pytest.mark.parametrize("judged", [False, True], ids=["by chance", "by the policy"])
async def test_actions_that_cannot_be_listed_are_sampled(
    tmp_path: Path, judged: bool, env_id: str, length: int
) -> None:
    """Samples of any action or of a policy's, out of what is allowed: the episodes are played, and nothing fails."""
    leaf: Literal["evaluate", "rollout"] = "evaluate" if judged else "rollout"
    plan = SearchConfig(num_simulations=6, num_sampled=4, waves=4, rng="frozen", leaf=leaf, rollout_steps=5)
    kwargs = '{"max_episode_steps": 20}' if env_id == "Pendulum-v1" else "{}"
    config, checkpoint = RunConfig(env_id=env_id, env_kwargs=kwargs), None
    if judged:
        tiny = tiny_config(tmp_path, env_id=env_id, env_kwargs=kwargs, total_timesteps=32, host="auto")
        ran = await asyncio.to_thread(run_to_the_end, "ppo", tiny)
        algorithm, config = saved_config(RunDir(ran.folder))
        checkpoint = (algorithm, load_newest(RunDir(ran.folder).checkpoints))
    wish = SearchPlayWish(plan=plan, episodes=2, num_envs=2, checkpoint=checkpoint)
    played = await play_by_search(config, wish, None)
    assert played.evaluation.lengths == (length, length)
    assert played.stats.simulations == 2 * length * 6
    assert env_id == "Pendulum-v1" or min(played.evaluation.returns) >= 0
    assert not played.stats.failures


async def test_what_cannot_be_played_is_said(ran: Ran, tmp_path: Path) -> None:
    """Weights of another environment; states that cannot leave their server."""
    folder = RunDir(ran.folder)
    algorithm, _ = saved_config(folder)
    wish = SearchPlayWish(plan=JUDGED, episodes=1, checkpoint=(algorithm, load_newest(folder.checkpoints)))
    with pytest.raises(CheckpointMismatch):
        await play_by_search(RunConfig(env_id="Acrobot-v1"), wish, None)
    async with EnvServerProcess(tmp_path, envs=["CartPole-v1"]) as server:
        apart = SearchPlayWish(plan=ROLLOUTS, episodes=1, search_servers=server.address)
        with pytest.raises(ConfigError, match="give all env servers the same --snapshot-key-file"):
            await play_by_search(CARTPOLE, apart, server.address)
        with pytest.raises(ConfigError, match="need servers for the environments, too"):
            await play_by_search(CARTPOLE, apart, None)
    with pytest.raises(ConfigError, match="actions of Pendulum-v1 cannot be listed: --num-sampled"):
        await play_by_search(PENDULUM, SearchPlayWish(plan=ROLLOUTS, episodes=1), None)


async def test_states_that_nobody_believes_end_it_at_once(tmp_path: Path) -> None:
    """Servers with a key each: an error that names the key, before an episode is over."""
    heard: list[float] = []

    def key(name: str) -> list[str]:
        path = tmp_path / name
        path.write_bytes(os.urandom(32))
        path.chmod(0o600)
        return ["--snapshot-key-file", str(path)]

    async with (
        EnvServerProcess(tmp_path, envs=["CartPole-v1"], options=key("a"), name="one") as one,
        EnvServerProcess(tmp_path, envs=["CartPole-v1"], options=key("b"), name="two") as two,
    ):
        wish = SearchPlayWish(plan=ROLLOUTS, episodes=1, search_servers=two.address)
        with pytest.raises(ConfigError, match="the same --snapshot-key-file"):
            await play_by_search(CARTPOLE, wish, one.address, None, lambda ret, length: heard.append(ret))
    assert not heard
