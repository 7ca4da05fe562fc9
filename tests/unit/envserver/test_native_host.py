"""Registered vector environments behind the host seam, against the same environments stepped directly."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from asyncrl.errors import ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import FIRST, NO_TRANSITION, TERMINATED, TRUNCATED
from asyncrl.wire.requests import ResetRequest
from envserver.host import Host, LaneWish
from envserver.native_host import NativeHost
from envserver.recipe import Recipe
from envserver.registry import parse_env_option
from tests.unit.envserver import zoo
from tests.unit.envserver.driving import Driver, assert_infos_equal, build, registered, seeds


def cart_pole(num_slots: int, option: str = "CartPole-v1") -> Host:
    return build(option, num_slots, host=pb.NATIVE, autoreset=pb.NEXT_STEP)


class LoopedVectorEnv(SyncVectorEnv):
    """A vector environment with composite spaces and infos, as somebody's `vector_entry_point`."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, which: str = "mixed", fails_at: int = -1, sloppy: bool = False) -> None:
        super().__init__([zoo.mixed if which == "mixed" else zoo.masked] * num_envs)
        self._fails_in, self._sloppy = fails_at, sloppy

    def step(self, actions: Any) -> Any:
        self._fails_in -= 1
        if self._fails_in == -1:
            raise RuntimeError("this vector environment broke")
        resets = self._autoreset_envs.copy()
        obs, rewards, terminated, truncated, infos = super().step(actions)
        if self._sloppy:
            rewards[resets] = 7.0
            terminated[resets] = True
        return obs, rewards, terminated, truncated, infos


def test_native_rows_equal_those_of_the_environment() -> None:
    """Observations, rewards, ends and statistics of 40 carts over 300 steps."""
    count = 40
    driver = Driver(cart_pole(count, 'cart=CartPole-v1{"max_episode_steps":60}'), count)
    env: VectorEnv[Any, Any, Any] = gymnasium.make_vec(
        "CartPole-v1", count, vectorization_mode="vector_entry_point", max_episode_steps=60
    )
    rng = np.random.default_rng(2)
    np.testing.assert_array_equal(driver.reset(seeds(5, count)).obs[0], env.reset(seed=5)[0])
    was = np.zeros(count, np.bool_)
    returns, truncations = np.zeros(count), 0
    for _ in range(300):
        action = rng.integers(2, size=count)
        rows = driver.step([action])
        obs, rewards, terminated, truncated, _ = env.step(action)
        expected = np.where(terminated, TERMINATED, np.where(truncated, TRUNCATED, 0))
        expected[was] = FIRST | NO_TRANSITION
        np.testing.assert_array_equal(rows.obs[0], obs)
        np.testing.assert_array_equal(rows.rewards, rewards)
        np.testing.assert_array_equal(rows.flags, expected)
        returns = np.where(was, 0, returns + rewards)
        was = terminated | truncated
        truncations += int(truncated.sum())
        ended = np.flatnonzero(was)
        assert (rows.stats is None) == (not ended.size)
        if rows.stats is not None:
            np.testing.assert_array_equal(rows.stats.rows, ended)
            np.testing.assert_array_equal(rows.stats.returns, returns[ended])
            np.testing.assert_array_equal(rows.stats.lengths, returns[ended])
    assert truncations > 0


def test_native_rows_keep_to_the_row_table() -> None:
    """Every flag of 500 steps, with whole resets between (the driver checks the order)."""
    driver = Driver(cart_pole(16), 16)
    rng = np.random.default_rng(0)
    for _ in range(5):
        driver.reset()
        for _ in range(100):
            driver.step([rng.integers(2, size=16)])
    assert driver.tracker.episode.min() > 10


def test_composite_spaces_and_infos_are_taken_apart() -> None:
    """Dict and Tuple leaves, nested infos with presence masks, and actions joined in the space's order."""
    with registered("Looped-v0", zoo.mixed, LoopedVectorEnv) as looped:
        driver = Driver(build(looped, 3, host=pb.NATIVE, autoreset=pb.NEXT_STEP), 3)
    env = LoopedVectorEnv(3)
    env.action_space.seed(1)
    driver.reset(seeds(4, 3))
    env.reset(seed=4)
    for _ in range(20):
        action = env.action_space.sample()
        rows = driver.step([action["a"], action["m"], action["z"]])
        obs, _, _, _, infos = env.step(action)
        by_path = dict(zip([leaf.path for leaf in driver.host.spec.observation.leaves], rows.obs, strict=True))
        np.testing.assert_array_equal(by_path["action/0"], obs["action"][0])
        np.testing.assert_array_equal(by_path["action/1"], obs["action"][1])
        np.testing.assert_array_equal(by_path["where"], obs["where"])
        assert_infos_equal(rows.infos, infos, 3)
        assert rows.infos_dropped == 1  # the text


def test_what_a_reset_row_returns_beside_its_observation_counts_for_nothing() -> None:
    """Rewards and ends of a step that was a reset are not believed, and the game's time begins with it."""
    now = [0.0]
    with registered("Sloppy-v0", zoo.mixed, LoopedVectorEnv):
        recipe = Recipe(parse_env_option('s=Sloppy-v0{"sloppy":true}'), {})
        wish = LaneWish("s", num_slots=2, autoreset=pb.NEXT_STEP)
        driver = Driver(NativeHost(recipe, wish, lambda *_: None, clock=lambda: now[0]), 2)
    driver.reset()
    for game in range(3):
        for step in range(7):
            now[0] += 1.0
            rows = driver.step()
            assert rows.rewards.tolist() == [step + 1.0] * 2
        assert rows.stats is not None, game
        assert rows.stats.returns.tolist() == [28.0, 28.0]
        assert rows.stats.times.tolist() == [7.0, 7.0]
        now[0] += 50.0
        rows = driver.step()
        assert (rows.flags.tolist(), rows.rewards.tolist()) == ([FIRST | NO_TRANSITION] * 2, [0.0, 0.0])


def test_masks_of_vector_infos_are_a_leaf() -> None:
    """action_mask of a vector environment's infos becomes the mask and no column."""
    with registered("Masked-v0", zoo.masked, LoopedVectorEnv):
        driver = Driver(build('m=Masked-v0{"which":"masked"}', 2, host=pb.NATIVE, autoreset=pb.NEXT_STEP), 2)
    rows = driver.reset()
    assert rows.mask is not None
    assert rows.mask.tolist() == [[False, True, False]] * 2
    assert [column.key for column in rows.infos] == ["to_play"]


def test_masked_resets_are_refused() -> None:
    """The environment would reset everything; a mask of all rows is a whole reset."""
    host = cart_pole(2)
    with pytest.raises(ServerRefused, match=r"UNSUPPORTED.*all rows or none"):
        host.reset(ResetRequest(np.array([True, False]), None, None))
    host.reset(ResetRequest(np.array([True, True]), None, None))


def test_a_step_before_the_first_reset_is_refused() -> None:
    """There is no observation to act on."""
    with pytest.raises(ServerRefused, match="BAD_REQUEST"):
        cart_pole(2).step([np.zeros(2, np.int64)])


def test_an_exception_is_a_fault_of_the_lane() -> None:
    """Nobody knows what became of the rows, so every later call says the same."""
    with registered("Breaks-v0", zoo.mixed, LoopedVectorEnv):
        driver = Driver(build('b=Breaks-v0{"fails_at":2}', 2, host=pb.NATIVE, autoreset=pb.NEXT_STEP), 2)
    driver.reset()
    driver.step()
    driver.step()
    for call in (driver.step, driver.step, driver.reset):
        with pytest.raises(ServerRefused, match=r"ENV_FAULT.*RuntimeError: this vector environment broke"):
            call()


def test_native_hosts_do_not_render() -> None:
    """Building never chooses them for a lane that wants images; asked all the same, they refuse."""
    with pytest.raises(ServerRefused, match="UNSUPPORTED"):
        cart_pole(1).render([0])
