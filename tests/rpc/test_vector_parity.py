"""RemoteVectorEnv against Gymnasium's SyncVectorEnv: equal seeds and actions give equal arrays and infos."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TimeLimit

import asyncrl
from tests.rpc.serving import serving
from tests.rpc.simulators import nested

pytestmark = pytest.mark.rpc

NUM_ENVS = 5
ENVS = ["CartPole-v1", "Pendulum-v1", "Blackjack-v1", "Taxi-v4", "nested=tests.rpc.simulators:nested", "ALE/Pong-v5"]
MODES = list(AutoresetMode)
NO_RESETS: Mapping[int, Any] = MappingProxyType({})


# alias -> (one environment as the server builds it, steps to compare)
CASES: dict[str, tuple[Callable[[], gymnasium.Env[Any, Any]], int]] = {
    "CartPole-v1": (lambda: gymnasium.make("CartPole-v1"), 120),
    "Pendulum-v1": (lambda: gymnasium.make("Pendulum-v1"), 210),
    "Blackjack-v1": (lambda: gymnasium.make("Blackjack-v1"), 60),
    "Taxi-v4": (lambda: gymnasium.make("Taxi-v4"), 220),
    "nested": (nested, 60),
}
PONG_STEPS = 13  # of an episode: no whole game fits into seconds


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(*ENVS, num_envs=200) as address:
        yield address


def assert_same(ours: Any, theirs: Any, where: str) -> None:
    """Equal in structure, dtype, shape and value; keys of dicts in any order."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict), where
        assert set(ours) == set(theirs), where
        for key, value in theirs.items():
            assert_same(ours[key], value, f"{where}[{key!r}]")
    elif isinstance(theirs, tuple):
        assert isinstance(ours, tuple), where
        assert len(ours) == len(theirs), where
        for number, value in enumerate(theirs):
            assert_same(ours[number], value, f"{where}[{number}]")
    elif isinstance(theirs, np.ndarray) and theirs.dtype == object:
        assert ours.dtype == object, where
        for number, value in enumerate(theirs):
            assert_same(ours[number], value, f"{where}[{number}]")
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype, where
        np.testing.assert_array_equal(ours, theirs, err_msg=where)
    else:
        assert ours == theirs, where


def _travelling(infos: Any) -> Any:
    """Infos without what is no number, and so stays on the server (ALE's tuple of seeds)."""
    if not isinstance(infos, dict):
        return infos
    objects = {key for key, value in infos.items() if isinstance(value, np.ndarray) and value.dtype.hasobject}
    stay = objects - {"final_obs"}
    return {key: _travelling(value) for key, value in infos.items() if key.removeprefix("_") not in stay}


def _both(server: str, name: str, mode: AutoresetMode) -> tuple[asyncrl.RemoteVectorEnv, SyncVectorEnv[Any, Any]]:
    remote = asyncrl.RemoteVectorEnv(name, NUM_ENVS, server, "slots", mode, lanes=2, episode_statistics=False)
    return remote, SyncVectorEnv([CASES[name][0]] * NUM_ENVS, autoreset_mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_parity_with_sync(server: str, name: str, mode: AutoresetMode) -> None:
    """Spaces, observations, rewards, flags and infos are equal, over ends, truncations and resets of every mode."""
    remote, local = _both(server, name, mode)
    try:
        assert remote.single_observation_space == local.single_observation_space
        assert remote.single_action_space == local.single_action_space
        assert remote.observation_space == local.observation_space
        assert remote.action_space == local.action_space
        assert remote.metadata["autoreset_mode"] is local.metadata["autoreset_mode"]
        _assert_parity(remote, local, CASES[name][1])
    finally:
        remote.close()
        local.close()


def _pong(mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
    """Preprocessed by Gymnasium's own wrappers, put together here: it knows nothing of the server's settings."""
    importlib.import_module("ale_py")  # registers its games
    return gymnasium.make_vec(
        "ALE/Pong-v5",
        NUM_ENVS,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": mode},
        wrappers=[
            AtariPreprocessing,
            partial(TimeLimit, max_episode_steps=PONG_STEPS),
            partial(FrameStackObservation, stack_size=4, padding_type="zero"),
        ],
        frameskip=1,
    )


@pytest.mark.parametrize("mode", MODES)
def test_parity_with_sync_over_the_ends_of_pong(server: str, mode: AutoresetMode) -> None:
    """Frames, stacks that begin anew, final observations and infos of ALE/Pong equal those of make_vec's, over ends of
    all rows at once, and of some of them where resets are the caller's."""
    kwargs = {"max_episode_steps": PONG_STEPS}
    remote = asyncrl.RemoteVectorEnv(
        "ALE/Pong-v5", NUM_ENVS, server, "slots", mode, kwargs, lanes=2, episode_statistics=False
    )
    local = _pong(mode)
    try:
        assert remote.single_observation_space == local.single_observation_space
        assert remote.single_action_space == local.single_action_space
        early = {4: np.arange(NUM_ENVS) % 2 == 1} if mode is AutoresetMode.DISABLED else {}
        ends = _assert_parity(remote, local, 3 * PONG_STEPS, early)
        assert ends >= 2 * NUM_ENVS
    finally:
        remote.close()
        local.close()


def _assert_parity(
    remote: asyncrl.RemoteVectorEnv, local: VectorEnv[Any, Any, Any], steps: int, early: Mapping[int, Any] = NO_RESETS
) -> int:
    """How many episodes ended. After the steps `early` rows b1 `[NUM_ENVS]` are reset that did not end."""
    local.action_space.seed(11)
    first, infos = local.reset(seed=7)
    assert_same(remote.reset(seed=7), (first, _travelling(infos)), "reset")
    ends = 0
    for step in range(steps):
        actions = local.action_space.sample()
        ours, theirs = remote.step(actions), local.step(actions)
        assert_same(ours, (*theirs[:4], _travelling(theirs[4])), f"step {step}")
        ended = theirs[2] | theirs[3]
        ends += int(ended.sum())
        mask = ended | early.get(step, False)
        if mask.any() and remote.metadata["autoreset_mode"] is AutoresetMode.DISABLED:
            options = {"reset_mask": mask, "start": 3}
            first, infos = local.reset(options=dict(options))
            assert_same(remote.reset(options=options), (first, _travelling(infos)), f"reset after step {step}")
            assert options["reset_mask"] is mask
    assert ends
    return ends


def test_a_seeded_reset_in_mid_episode(server: str) -> None:
    """A list of seeds seeds one by one, whatever happened before."""
    remote, local = _both(server, "CartPole-v1", AutoresetMode.SAME_STEP)
    try:
        for env in (remote, local):
            env.reset(seed=1)
            env.step(np.ones(NUM_ENVS, np.int64))
        seeds: list[int | None] = [3, 9, 5, 6, 7]
        assert_same(remote.reset(seed=seeds), local.reset(seed=seeds), "reset")
        assert_same(remote.step([0] * NUM_ENVS), local.step(np.zeros(NUM_ENVS, np.int64)), "step")
    finally:
        remote.close()
        local.close()
