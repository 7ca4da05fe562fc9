"""`RemoteVecEnv` beside SB3's own `DummyVecEnv`, and in the hands of SB3's PPO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import gymnasium
import numpy as np
import pytest

from asyncrl.errors import ConfigError, LocalProtocolError

stable_baselines3 = pytest.importorskip("stable_baselines3")

from stable_baselines3.common.monitor import Monitor  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv  # noqa: E402

from asyncrl.sb3 import RemoteVecEnv  # noqa: E402
from asyncrl.vector.exchange import Exchange  # noqa: E402
from tests.rpc.simulators import Graded  # noqa: E402

pytestmark = pytest.mark.rpc


@pytest.fixture
def remote() -> Iterator[RemoteVecEnv]:
    env = RemoteVecEnv("CartPole-v1", num_envs=5, lanes=2, host="slots")
    yield env
    env.close()


def test_parity_with_dummy_vec_env(remote: RemoteVecEnv) -> None:
    """Same seeds and actions: the same observations, rewards, ends, and infos that SB3's algorithms read."""
    local = DummyVecEnv([lambda: Monitor(gymnasium.make("CartPole-v1")) for _ in range(5)])
    local.seed(7)
    remote.seed(7)
    np.testing.assert_array_equal(local.reset(), remote.reset())
    rng, ended = np.random.default_rng(0), 0
    for _ in range(150):
        actions = rng.integers(0, 2, 5)
        theirs, ours = local.step(actions), remote.step(actions)
        for left, right in zip(theirs[:3], ours[:3], strict=True):
            np.testing.assert_array_equal(left, right)
            assert np.asarray(left).dtype == np.asarray(right).dtype
        for left_info, right_info in zip(theirs[3], ours[3], strict=True):
            assert left_info["TimeLimit.truncated"] == right_info["TimeLimit.truncated"]
            assert ("terminal_observation" in left_info) == ("terminal_observation" in right_info)
            if "terminal_observation" in left_info:
                ended += 1
                np.testing.assert_array_equal(left_info["terminal_observation"], right_info["terminal_observation"])
                for key in ("r", "l"):
                    assert left_info["episode"][key] == right_info["episode"][key]
    assert ended > 10


def test_infos_are_those_of_dummy_vec_env() -> None:
    """The last step's stay with it, so that successes are counted, and the next reset's are in `reset_infos`."""
    local: Any = DummyVecEnv([lambda: Monitor(Graded()) for _ in range(4)])
    remote: Any = RemoteVecEnv("graded=tests.rpc.simulators:Graded", num_envs=4, lanes=2)
    for env in (local, remote):
        env.reset()
    rng, successes = np.random.default_rng(0), 0
    for _ in range(30):
        actions = rng.integers(0, 2, 4)
        theirs, ours = local.step(actions)[3], remote.step(actions)[3]
        for info in (*theirs, *ours):
            info.get("episode", {}).pop("t", None)
        assert ours == theirs
        assert remote.reset_infos == local.reset_infos
        successes += sum(info.get("is_success", False) for info in ours)
    assert successes > 3
    assert any(info["start"] > 5 for info in remote.reset_infos)
    remote.close()


def test_a_lost_life_keeps_its_infos() -> None:
    """The game goes on behind such an end: the infos are the step's, and no reset has said anything."""
    env: Any = RemoteVecEnv("ALE/Breakout-v5", env_kwargs={"soft_ends": True, "noop_max": 0}, host="slots")
    env.reset()
    before = [dict(info) for info in env.reset_infos]
    for _ in range(200):
        _, _, ended, (info,) = env.step(np.array([1]))
        assert info["lives"] == 5 - ended[0]
        if ended[0]:
            break
    assert ended[0]
    assert env.reset_infos == before
    env.close()


def test_the_library_can_learn_with_it(remote: RemoteVecEnv) -> None:
    """PPO takes it as it is: no wrapper, no warning, statistics of episodes arrive."""
    model: Any = stable_baselines3.PPO("MlpPolicy", remote, n_steps=64, batch_size=64, n_epochs=1, device="cpu")
    model.learn(640)
    assert len(model.ep_info_buffer) > 5


def test_a_lost_lane_goes_on_as_rows() -> None:
    """While it is away each of its rows is a truncation that is marked; the others step on, and it comes back."""
    env: Any = RemoteVecEnv("on_demand=tests.rpc.simulators:OnDemand", num_envs=4, lanes=2)
    env.reset()
    env.step(np.zeros(4, int))
    crash, came_back = np.array([4, 0, 0, 0]), False
    for t in range(2, 20_000):
        obs, rewards, ended, infos = env.step(crash if t == 2 else np.zeros(4, int))
        assert (len(obs), len(infos)) == (4, 4)
        lost = ["asyncrl/lost" in info for info in infos]
        if came_back:
            assert lost == [False] * 4
            np.testing.assert_array_equal(obs[:, 1], [1, 1, t, t])
            break
        assert lost == [True, True, False, False] == ended.tolist()
        assert rewards.tolist() == [0, 0, 1, 1]
        for row in (0, 1):
            assert infos[row]["TimeLimit.truncated"]
            np.testing.assert_array_equal(infos[row]["terminal_observation"][1], 1)
        np.testing.assert_array_equal(obs[2:, 1], [t, t])
        came_back = bool(obs[0, 1] == 0)
    assert came_back
    env.close()


def test_an_interrupted_step_is_no_end(remote: RemoteVecEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C in the wait for a step the environment is reset, or stepped, as before."""

    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    def step() -> Any:
        return remote.step(np.zeros(5, int))[0]

    def reset() -> Any:
        remote.seed(3)
        return remote.reset()

    first = reset()
    for call in (step, reset):
        with monkeypatch.context() as patch:
            patch.setattr(Exchange, "_receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                remote.step(np.ones(5, int))
        after = call()
        assert after.shape == (5, 4)
    np.testing.assert_array_equal(after, first)


def test_what_cannot_be_remote_is_refused_clearly(remote: RemoteVecEnv) -> None:
    """Methods and attributes of the environments stay on their machine, and the text says what to do."""
    for refused in (
        lambda: remote.env_method("foo"),
        lambda: remote.set_attr("x", 1),
        lambda: remote.get_attr("gravity"),
    ):
        with pytest.raises(LocalProtocolError, match="envserver --env"):
            refused()  # type: ignore[no-untyped-call]
    assert remote.get_attr("render_mode", [0, 1]) == [None, None]
    assert remote.env_is_wrapped(Monitor) == [True] * 5
    with pytest.raises(ConfigError, match="autoreset_mode"):
        RemoteVecEnv("CartPole-v1", autoreset_mode="Disabled")
