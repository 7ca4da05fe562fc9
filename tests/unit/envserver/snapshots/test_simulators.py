"""Simulators that give their own state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ale_py  # noqa: F401  registers the ids
import gymnasium
import numpy as np
import pytest

from asyncrl.wire._generated import env_pb2 as pb
from envserver.atari import AtariSettings
from envserver.snapshots import plain
from envserver.snapshots.codec import BadState, CannotCapture
from envserver.snapshots.simulators import (
    KEY_STATE,
    OWN_STATES,
    AlePart,
    key_state_codec,
    methods_of,
    simulator_codec,
)
from tests.unit.envserver.snapshots.toys import OwnStateEnv, key_state, own_state, uncopyable, walk


def future(env: Any, steps: int = 10) -> list[Any]:
    found = []
    for number in range(steps):
        obs, reward, *ends, _ = env.step(number % 3)
        found.append((np.array(obs).tobytes(), float(reward), *ends))
    return found


def played(make: Callable[[], Any], action: int) -> tuple[Any, Any]:
    """An environment that is 20 steps into its episode, and one that begins another."""
    env, other = make(), make()
    env.reset(seed=1)
    other.reset(seed=2)
    for _ in range(20):
        env.step(action)
    return env, other


def test_own_states_are_copies() -> None:
    """What it handed out, and writes into later, is not the state; its np_random goes on, and its time limit too."""
    env, other = played(own_state, 1)
    codec = simulator_codec(env)
    assert (codec.support, codec.name) == (pb.SNAPSHOT_EXACT, "own state")
    state, nbytes = codec.capture(env)
    assert nbytes > 0
    wanted = future(env)
    assert wanted[-1][-1], "the limit of 30 steps"
    for target in (other, env, other):
        assert future(codec.restore(target, state, None)) == wanted


def test_a_pair_of_methods_is_what_it_takes() -> None:
    """One without arguments, one that takes the state; MuJoCo's `set_state(qpos, qvel)` is something else."""

    class TwoArguments(OwnStateEnv):
        def set_state(self, qpos: Any, qvel: Any) -> None:  # type: ignore[override]
            raise AssertionError

    class Clones(TwoArguments):
        def clone_state(self) -> Any:
            return 0

        def restore_state(self, state: Any) -> None:
            raise AssertionError

    assert methods_of(OwnStateEnv(), OWN_STATES) == ("get_state", "set_state")
    assert methods_of(TwoArguments(), OWN_STATES) is None
    assert methods_of(Clones(), OWN_STATES) == ("clone_state", "restore_state")
    assert methods_of(key_state(), (KEY_STATE,)) == KEY_STATE
    for env in (walk(), uncopyable()):
        env.reset(seed=1)
        with pytest.raises(CannotCapture, match="get_state"):
            simulator_codec(env)
        with pytest.raises(CannotCapture, match="get_key_state"):
            key_state_codec(env)


def test_an_own_state_that_is_not_plain_is_refused() -> None:
    """What could be shared with the environment is no state."""

    class Handle(OwnStateEnv):
        def get_state(self) -> Any:
            return iter(())

    env = Handle()
    env.reset(seed=1)
    with pytest.raises(CannotCapture, match="iterator"):
        simulator_codec(env)


def test_key_variables_are_enough_with_the_wrappers() -> None:
    """The time limit is the wrapper's, and not among the key variables."""
    env, other = played(key_state, 2)
    codec = key_state_codec(env)
    assert codec.support == pb.SNAPSHOT_PROBED
    state, _ = codec.capture(env)
    wanted = future(env, 5)
    assert wanted[-1][-1], "the limit of 25 steps"
    assert future(codec.restore(other, state, None), 5) == wanted


ATARI = {"ALE/Breakout-v5": 4, "ALE/Pong-v5": 6}


@pytest.mark.parametrize("sticky", [0.0, 0.25])
@pytest.mark.parametrize("game", ATARI)
def test_games_come_back_with_all_their_wrappers(game: str, sticky: float) -> None:
    """200 steps, byte by byte, with infos: in the same game, in another one, and from a snapshot of the snapshot.

    The soft end of a lost life, the frame stack, the screens of the maximum and sticky actions belong to the state.
    """
    settings = AtariSettings.of(game, {"repeat_action_probability": sticky, "soft_ends": True, "noop_max": 5})
    env, other = settings.make(None, capturable=True), settings.make(None, capturable=True)
    env.reset(seed=1)
    other.reset(seed=2)
    rng = np.random.default_rng(0)
    before, after = rng.integers(ATARI[game], size=(2, 200)).tolist()
    codec = simulator_codec(env)
    assert (codec.support, codec.name, codec.remembers_obs) == (pb.SNAPSHOT_EXACT, "ale", True)
    for action in before[:37]:
        obs = env.step(action)[0]
    state, _ = codec.capture(env)
    assert np.array_equal(codec.observe(env), obs)

    def play(target: Any) -> list[Any]:
        found: list[Any] = []
        for action in after:
            obs, reward, terminated, truncated, info = target.step(action)
            found.append((obs.tobytes(), reward, terminated, truncated, repr(sorted(info.items()))))
            if terminated:
                break
        return found

    wanted = play(env)
    assert len(wanted) > 50
    for target in (other, env):
        for action in before[:11]:  # other actions before, which leave nothing behind
            target.step(action)
        codec.restore(target, state, None)
        assert np.array_equal(codec.observe(target), obs)
        again, _ = codec.capture(target)
        assert play(target) == wanted
        assert play(codec.restore(target, again, None)) == wanted


def test_sticky_actions_follow_the_state_or_the_seed() -> None:
    """No seed: the luck of the snapshot. A seed: luck of its own, the same for the same seed."""
    env = AtariSettings.of("ALE/Breakout-v5", {"repeat_action_probability": 0.5}).make(None, capturable=True)
    env.reset(seed=1)
    codec = simulator_codec(env)
    for action in (1, 0, 2, 3):
        env.step(action)
    state, _ = codec.capture(env)

    def luck(seed: int | None) -> list[Any]:
        codec.restore(env, state, seed)
        return future(env, 25)

    assert luck(None) == luck(None)
    assert luck(7) == luck(7)
    assert len({repr(luck(seed)) for seed in (None, 7, 8)}) == 3


def test_ale_with_sticky_actions_of_its_own_is_refused() -> None:
    """Its state does not say which action would be repeated."""
    env = gymnasium.make("ALE/Pong-v5", repeat_action_probability=0.25)
    env.reset(seed=1)
    with pytest.raises(CannotCapture, match="may repeat"):
        simulator_codec(env)


@pytest.mark.parametrize("kwargs", [{}, {"frameskip": (2, 5)}])
def test_bare_games_come_back(kwargs: dict[str, Any]) -> None:
    """Without the preprocessing, and with frame skips drawn from the environment's own generator."""
    made = [gymnasium.make("ALE/Pong-v5", repeat_action_probability=0.0, **kwargs) for _ in range(2)]
    for seed, env in enumerate(made):
        env.reset(seed=seed)
        env.step(2)
    codec = simulator_codec(made[0])
    state, _ = codec.capture(made[0])
    wanted = future(made[0])
    assert future(codec.restore(made[1], state, None)) == wanted


def test_values_of_other_games_are_refused() -> None:
    """Parts of the wrong kind, and too few of them."""
    env = AtariSettings.of("ALE/Pong-v5", {}).make(None, capturable=True)
    env.reset(seed=1)
    codec = simulator_codec(env)
    good = codec.dump(codec.capture(env)[0])
    for bad in (None, [], good[:-1], [*good[:-1], ("no bytes", None)], [None] * len(good), [0, *good[1:]]):
        with pytest.raises(BadState):
            codec.load(bad)
    other = own_state()
    other.reset(seed=1)
    with pytest.raises(CannotCapture, match="wrapped in another way"):
        codec.capture(other)


def test_a_quota_counts_what_a_game_takes() -> None:
    """The bytes of ALE's state, and some for the generator: less would let a store outgrow its quota."""
    env: Any = gymnasium.make("ALE/Pong-v5", repeat_action_probability=0.0).unwrapped
    env.reset(seed=1)
    (data, generator), nbytes = AlePart(env).capture(env)
    assert nbytes - len(data) == pytest.approx(plain.size_of(generator), abs=300)
    assert nbytes > len(data)
