"""Wrappers of any kind around any simulator."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers

from asyncrl.wire._generated import env_pb2 as pb
from envserver.snapshots.chain import ChainCodec, FieldsPart, ScreensPart, part_for
from envserver.snapshots.codec import BadState, CannotCapture, layers_of
from envserver.snapshots.probing import fields_codec
from tests.unit.envserver.snapshots.toys import NestedEnv, uncopyable, walk

WRAPPED: dict[str, Callable[[], Any]] = {
    "time limit": lambda: wrappers.TimeLimit(walk(), 20),
    "frame stack": lambda: wrappers.FrameStackObservation(wrappers.TimeLimit(walk(), 20), 3),
    "stack with zeros, under others": lambda: wrappers.TransformReward(
        wrappers.FrameStackObservation(walk(), 2, padding_type="zero"), float
    ),
    "statistics": lambda: wrappers.RecordEpisodeStatistics(wrappers.TimeLimit(walk(), 20)),
    "sticky": lambda: wrappers.StickyAction(walk(), 0.3),
    "time aware": lambda: wrappers.TimeAwareObservation(wrappers.TimeLimit(walk(), 20)),
    "normalised": lambda: wrappers.NormalizeReward(walk()),
    "delayed": lambda: wrappers.DelayObservation(gymnasium.make("Pendulum-v1", max_episode_steps=20), 2),
    "registered": lambda: gymnasium.make("Pendulum-v1", max_episode_steps=20),
}


def play(env: Any, count: int) -> list[Any]:
    """Actions that need no space; what they gave, without the times of the clock."""
    found = []
    is_box = isinstance(env.action_space, gymnasium.spaces.Box)
    for number in range(count):
        obs, reward, terminated, truncated, info = env.step(np.array([number % 3 - 1.0]) if is_box else number % 3)
        info.get("episode", {}).pop("t", None)
        found.append((np.asarray(obs).tobytes(), float(reward), terminated, truncated, repr(info)))
        if terminated or truncated:
            break
    return found


@pytest.mark.parametrize("name", WRAPPED)
def test_wrappers_belong_to_the_state(name: str) -> None:
    """Counters, stacks, buffers, running means and generators of wrappers, to the end of the episode."""
    env, other = WRAPPED[name](), WRAPPED[name]()
    env.reset(seed=1)
    other.reset(seed=2)
    play(other, 3)
    codec = fields_codec(env)
    play(env, 9)
    state, nbytes = codec.capture(env)
    wanted = play(env, 30)
    assert nbytes > 0
    for target in (other, env, other):
        codec.restore(target, state, None)
        again, _ = codec.capture(target)
        assert play(target, 30) == wanted
        assert play(codec.restore(env, again, None), 30) == wanted
        target.reset(seed=5)
        play(target, 2)


def test_frames_are_shared_and_never_written() -> None:
    """A child has its parent's frames but for the newest; whoever writes into what was observed changes no state."""
    env = wrappers.FrameStackObservation(walk(), 3)
    env.reset(seed=1)
    codec = fields_codec(env)
    play(env, 4)
    parent, _ = codec.capture(env)
    obs = env.step(1)[0]
    child, _ = codec.capture(env)
    (older, _), (newer, _) = parent[0], child[0]
    assert [a is b for a, b in zip(older[1:], newer[:-1], strict=True)] == [True, True]
    assert not any(frame.flags.writeable for frame in newer)
    kept = codec.observe(env)
    assert np.array_equal(kept, obs)
    obs[...] = -1.0
    assert not np.array_equal(codec.observe(codec.restore(env, child, None)), obs)


def test_only_what_is_the_observation_is_remembered() -> None:
    """A wrapper above the stack may change it: then the stack is not what a client saw."""
    for wrap, wanted in ((lambda env: wrappers.TimeLimit(env, 9), True), (wrappers.FlattenObservation, False)):
        env: Any = wrap(wrappers.FrameStackObservation(walk(), 3))
        env.reset(seed=1)
        assert fields_codec(env).remembers_obs is wanted
    env = walk()
    env.reset(seed=1)
    assert not fields_codec(env).remembers_obs


def test_generators_go_on_or_begin_anew() -> None:
    """No seed: the very same future. A seed: another one for every seed, in every generator there is."""
    env = wrappers.StickyAction(NestedEnv(), 0.3)
    env.reset(seed=1)
    codec = fields_codec(env)
    play(env, 3)
    state, _ = codec.capture(env)

    def future(seed: int | None) -> list[Any]:
        return play(codec.restore(env, state, seed), 6)

    assert future(None) == future(None)
    assert future(4) == future(4)
    assert len({repr(future(seed)) for seed in (None, 4, 5)}) == 3
    inner: Any = env.unwrapped
    codec.restore(env, state, 4)
    first = inner.own.normal(), inner.np_random.normal()
    codec.restore(env, state, 4)
    assert (inner.own.normal(), inner.np_random.normal()) == first
    assert first[0] != first[1]


def test_a_simulator_that_is_not_plain_is_refused() -> None:
    """The error names the layer and what it holds."""
    env = uncopyable()
    env.reset(seed=1)
    with pytest.raises(CannotCapture, match=r"UncopyableEnv holds .*iterator"):
        fields_codec(env)


def test_states_that_do_not_fit_are_bad() -> None:
    """Too many parts, or parts of something else."""
    env = wrappers.TimeLimit(NestedEnv(), 9)
    env.reset(seed=1)
    codec = fields_codec(env)
    state, _ = codec.capture(env)
    for bad in ([*state, state[0]], [state[1], state[0]]):
        with pytest.raises(BadState):
            codec.restore(env, bad, None)
    assert [type(part_for(layer)).__name__ for layer in layers_of(env)] == ["AttributesPart", "FieldsPart"]
    dumped = codec.dump(state)
    dumped[1] = (dumped[1][0], b"another digest")
    with pytest.raises(BadState, match="tables"):
        codec.load(dumped)
    assert isinstance(ChainCodec("x", pb.SNAPSHOT_PROBED, env, FieldsPart()), ChainCodec)


def test_the_second_screen_adds_nothing_to_a_restored_first_one() -> None:
    """A game that ends in its first frame after a restore shows the maximum of both screens: black stays black."""
    saved = np.array([[0, 7], [0, 200]], np.uint8)
    layer = SimpleNamespace(obs_buffer=[saved.copy(), saved // 2], frame_skip=4, lives=3, game_over=False)
    part = ScreensPart()
    state, _ = part.capture(layer)
    for screen in layer.obs_buffer:
        screen[...] = 99
    part.restore(layer, state)
    assert np.maximum(*layer.obs_buffer).tolist() == saved.tolist()
