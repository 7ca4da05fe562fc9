"""RemoteVectorEnv among Gymnasium's own: make_vec, wrappers, statistics, rendering, refusals, the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as wrappers

import asyncrl
from asyncrl.errors import ConfigError, LocalProtocolError, ServerRefused
from asyncrl.gym_spaces import ActionError
from asyncrl.registration import ENV_ID, register_envs
from tests.rpc.serving import serving
from tests.rpc.test_vector_parity import assert_same

pytestmark = pytest.mark.rpc

ENVS = ["CartPole-v1", "Pendulum-v1", "Taxi-v4", "on_demand=tests.rpc.simulators:OnDemand"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(*ENVS, num_envs=64) as address:
        yield address


@pytest.fixture
def cartpoles(server: str) -> Iterator[asyncrl.RemoteVectorEnv]:
    env = asyncrl.RemoteVectorEnv("CartPole-v1", 4, server, lanes=2)
    yield env
    env.close()


def _play(env: Any, steps: int, seed: int = 3) -> Iterator[Any]:
    env.action_space.seed(seed)
    env.reset(seed=seed)
    for _ in range(steps):
        yield env.step(env.action_space.sample())


@pytest.mark.parametrize("mode", [None, "vector_entry_point"])
def test_make_vec_makes_remote_environments(server: str, mode: str | None) -> None:
    """Under its registered id, by the default mode and by the explicit one, the spec tells how to make it again."""
    register_envs()
    register_envs()
    env = gymnasium.make_vec(ENV_ID, 3, mode, env_id="CartPole-v1", servers=server, lanes=1)
    try:
        assert isinstance(env.unwrapped, asyncrl.RemoteVectorEnv)
        assert env.num_envs == 3
        assert env.spec is not None
        assert env.spec.id == ENV_ID
        assert env.reset(seed=1)[0].shape == (3, 4)
        again = gymnasium.make_vec(env.spec)
        assert again.num_envs == 3
        again.close()
    finally:
        env.close()


def test_episode_statistics_are_those_of_the_wrapper(server: str) -> None:
    """Returns and lengths in infos["episode"] equal RecordEpisodeStatistics around Gymnasium's environments."""
    remote = asyncrl.RemoteVectorEnv("CartPole-v1", 4, server, "slots", lanes=2)
    vector_kwargs = {"autoreset_mode": AutoresetMode.SAME_STEP}
    local = wrappers.RecordEpisodeStatistics(gymnasium.make_vec("CartPole-v1", 4, "sync", vector_kwargs=vector_kwargs))
    ended = 0
    for ours, theirs in zip(_play(remote, 150), _play(local, 150), strict=True):
        assert set(ours[4]) == set(theirs[4])
        if "episode" in theirs[4]:
            ended += 1
            np.testing.assert_array_equal(ours[4]["_episode"], theirs[4]["_episode"])
            for key in ("r", "l"):
                assert_same(ours[4]["episode"][key], theirs[4]["episode"][key], key)
            assert ours[4]["episode"]["t"].dtype == theirs[4]["episode"]["t"].dtype
    assert ended > 5
    remote.close()
    local.close()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_statistics_of_the_wrapper_work_on_top(server: str, mode: AutoresetMode) -> None:
    """Without statistics of its own the environment carries Gymnasium's wrapper, to equal results."""
    remote = asyncrl.RemoteVectorEnv("CartPole-v1", 3, server, "slots", mode, episode_statistics=False)
    wrapped = wrappers.RecordEpisodeStatistics(remote)
    local = wrappers.RecordEpisodeStatistics(
        gymnasium.make_vec("CartPole-v1", 3, "sync", vector_kwargs={"autoreset_mode": mode})
    )
    for ours, theirs in zip(_play(wrapped, 120), _play(local, 120), strict=True):
        for table in (ours[4].get("episode"), theirs[4].get("episode")):
            if table is not None:
                del table["t"]
        assert_same(ours, theirs, "step")
    assert list(wrapped.return_queue) == list(local.return_queue)
    assert len(wrapped.return_queue) > 3
    wrapped.close()
    local.close()


def test_other_wrappers_work_on_top(server: str) -> None:
    """Normalisers and transformers give what they give around Gymnasium's environments."""

    def dress(env: Any) -> Any:
        env = wrappers.NormalizeObservation(env)
        env = wrappers.NormalizeReward(env)
        env = wrappers.ClipReward(env, -1, 1)
        env = wrappers.ClipAction(env)
        return wrappers.DtypeObservation(env, np.float64)

    mode = AutoresetMode.NEXT_STEP
    remote = dress(asyncrl.RemoteVectorEnv("Pendulum-v1", 3, server, "slots", mode, episode_statistics=False))
    local = dress(gymnasium.make_vec("Pendulum-v1", 3, "sync", vector_kwargs={"autoreset_mode": mode}))
    for ours, theirs in zip(_play(remote, 50), _play(local, 50), strict=True):
        assert_same(ours, theirs, "step")
    remote.close()
    local.close()


def test_infos_as_lists(server: str) -> None:
    """DictInfoToList reads our infos, masks and final ones included."""
    env = wrappers.DictInfoToList(asyncrl.RemoteVectorEnv("Taxi-v4", 2, server, lanes=1, episode_statistics=False))
    _, infos = env.reset(seed=1)
    assert infos[0]["action_mask"].shape == (6,)
    # Every sampled action is one that the mask allows.
    assert infos[1]["action_mask"][env.single_action_space.sample(infos[1]["action_mask"])] == 1
    env.close()


def test_arrays_belong_to_the_caller(cartpoles: asyncrl.RemoteVectorEnv) -> None:
    """Writing into what a step returned changes neither the next one nor what was returned before."""
    cartpoles.reset(seed=1)
    first = cartpoles.step([0, 1, 0, 1])
    kept = [np.copy(array) for array in first[:4]]
    second = cartpoles.step([0, 1, 0, 1])
    for array in second[:4]:
        array[...] = 1
    for array, copy in zip(first[:4], kept, strict=True):
        np.testing.assert_array_equal(array, copy)
    third = cartpoles.step([0, 1, 0, 1])
    assert not np.array_equal(third[0], np.ones((4, 4)))


def test_slots_are_seeded_one_by_one_however_they_are_split(server: str) -> None:
    """`reset(seed=5)` gives slot i the first observation of seed 5 + i, over one lane or four."""
    wanted = np.stack([gymnasium.make("CartPole-v1").reset(seed=5 + slot)[0] for slot in range(4)])
    for lanes in (1, 4):
        env = asyncrl.RemoteVectorEnv("CartPole-v1", 4, server, lanes=lanes)
        np.testing.assert_array_equal(env.reset(seed=5)[0], wanted)
        env.close()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"reset_mask": [True, False, False, False]}, TypeError),
        ({"reset_mask": np.ones(3, np.bool_)}, ValueError),
        ({"reset_mask": np.ones(4, np.int8)}, TypeError),
        ({"reset_mask": np.zeros(4, np.bool_)}, ValueError),
        ({"callback": print}, ConfigError),
    ],
)
def test_bad_reset_options_are_refused(
    cartpoles: asyncrl.RemoteVectorEnv, options: dict[str, Any], error: type[Exception]
) -> None:
    """Masks of a wrong kind raise what SyncVectorEnv raises, what cannot travel ConfigError; neither does harm."""
    cartpoles.reset(seed=1)
    with pytest.raises(error):
        cartpoles.reset(options=options)
    with pytest.raises(ValueError, match="num_envs=4"):
        cartpoles.reset(seed=[1, 2])
    assert cartpoles.step([0, 1, 0, 1])[0].shape == (4, 4)


def test_bad_actions_are_typed_errors(cartpoles: asyncrl.RemoteVectorEnv) -> None:
    """A wrong form is found here and an impossible value by the server; the environment lives on."""
    with pytest.raises(ResetNeeded):
        cartpoles.step([0, 0, 0, 0])
    cartpoles.reset(seed=1)
    with pytest.raises(ActionError, match=r"shape \[3\]"):
        cartpoles.step([0, 0, 0])
    with pytest.raises(ServerRefused, match=r"outside 0\.\.1") as caught:
        cartpoles.step([0, 0, 0, 7])
    assert caught.value.code == "BAD_ACTION"
    assert cartpoles.step([0, 1, 0, 1])[0].shape == (4, 4)


def test_disabled_autoreset_asks_for_the_reset(server: str) -> None:
    """Stepping an ended environment is an error that names it, as Gymnasium's is."""
    env = asyncrl.RemoteVectorEnv("on_demand", 3, server, autoreset_mode=AutoresetMode.DISABLED, lanes=1)
    env.reset(seed=1)
    _, _, terminated, truncated, _ = env.step([0, 1, 2])
    assert (terminated.tolist(), truncated.tolist()) == ([False, True, False], [False, False, True])
    with pytest.raises(ResetNeeded, match=r"\[1, 2\]"):
        env.step([0, 0, 0])
    env.reset(options={"reset_mask": np.array([False, True, True])})
    np.testing.assert_array_equal(env.step([0, 0, 0])[0][:, 1], [2, 1, 1])
    env.close()


def test_render_gives_a_frame_per_environment(server: str) -> None:
    """Frames come in slot order over all lanes; without a render mode there are none, and other modes are refused."""
    env = asyncrl.RemoteVectorEnv("on_demand", 3, server, lanes=2, render_mode="rgb_array")
    env.reset(seed=1)
    env.step([0, 0, 1])
    frames = env.render()
    assert frames is not None
    assert [frame.shape for frame in frames] == [(4, 6, 3)] * 3
    assert [int(frame[0, 0, 0]) for frame in frames] == [1, 1, 0]
    assert env.render_mode == "rgb_array"
    assert env.metadata["render_fps"] == 30
    env.close()
    with pytest.raises(ConfigError, match="human"):
        asyncrl.RemoteVectorEnv("on_demand", 1, server, render_mode="human")


@pytest.mark.parametrize("name", ["call", "get_attr"])
def test_reaching_into_environments_is_refused(cartpoles: asyncrl.RemoteVectorEnv, name: str) -> None:
    """The error says why, and what to do instead."""
    with pytest.raises(LocalProtocolError, match="env_kwargs="):
        getattr(cartpoles, name)("gravity")
    with pytest.raises(LocalProtocolError, match="env_kwargs="):
        cartpoles.set_attr("gravity", 3)


def test_a_closed_environment_says_so(server: str) -> None:
    """close() may be called twice; everything else raises Gymnasium's error then."""
    env = asyncrl.RemoteVectorEnv("CartPole-v1", 2, server)
    env.reset()
    env.close()
    env.close()
    for call in (env.reset, lambda: env.step([0, 0]), env.render, env.async_reset, env.recv):
        with pytest.raises(ClosedEnvironmentError, match="after a call to `close"):
            call()
