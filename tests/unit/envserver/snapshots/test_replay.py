"""States that are pasts."""

from __future__ import annotations

from typing import Any

import pytest

from envserver.snapshots import plain
from envserver.snapshots.codec import BadState, CannotCapture
from envserver.snapshots.pacing import Pace, Stopped
from envserver.snapshots.replay import Recorder, ReplayCodec
from tests.unit.envserver.snapshots.toys import long_walk, uncopyable, walk


def recorded(seed: int = 1) -> Recorder:
    env = Recorder(uncopyable())
    env.reset(seed=seed)
    return env


def future(env: Any) -> list[Any]:
    return [(obs.tobytes(), reward) for obs, reward, *_ in (env.step(number % 3) for number in range(6))]


@pytest.mark.parametrize("way", ["memory", "bytes"])
def test_replay_restores_deterministic_games(way: str) -> None:
    """In the same environment and in another one, by seed and actions alone."""
    env, other, codec = recorded(), recorded(2), ReplayCodec()
    for number in range(7):
        env.step(number % 3)
    state, _ = codec.capture(env)
    wanted = future(env)
    if way == "bytes":
        state = codec.load(plain.load(plain.dump(codec.dump(state))))
    for target in (env, other, other):
        assert future(codec.restore(target, state, None)) == wanted


def test_an_unseeded_reset_gets_a_seed() -> None:
    """A second episode can be replayed without the first; episodes differ, and follow from the first seed."""
    codec, pasts = ReplayCodec(), []
    for _ in range(2):
        env = recorded(5)
        firsts = [env.reset()[0].tobytes() for _ in range(20)]
        pasts.append(firsts)
        state, _ = codec.capture(env)
        wanted = future(env)
        assert future(codec.restore(recorded(9), state, None)) == wanted
    assert pasts[0] == pasts[1]
    assert len(set(pasts[0])) > 1


def test_a_long_past_is_stopped_on_its_way() -> None:
    """Within a few steps; the next restore plays the whole of it again, from wherever the environment stands."""
    env, other, codec = Recorder(long_walk()), Recorder(long_walk()), ReplayCodec()
    for each in (env, other):
        each.reset(seed=1)
    for number in range(500):
        env.step(number % 3)
    state, _ = codec.capture(env)
    wanted = future(env)
    looks = iter([""] * 5)
    with pytest.raises(Stopped):
        codec.restore(other, state, None, Pace(lambda: next(looks, "DEADLINE")))
    stands_at: Any = other.unwrapped
    assert stands_at.t < 100
    assert other.past is None
    assert future(codec.restore(other, state, None)) == wanted


def test_pasts_are_shared() -> None:
    """A child costs one event; an environment that stands on the way plays only what is missing."""
    env, codec = recorded(), ReplayCodec()
    parent, _ = codec.capture(env)
    env.step(1)
    child, nbytes = codec.capture(env)
    assert child.before is parent
    assert nbytes < 300
    codec.restore(env, parent, None)
    steps: list[Any] = []
    step = env.env.step

    def counted(action: Any) -> Any:
        steps.append(action)
        return step(action)

    env.env.step = counted  # type: ignore[method-assign]
    codec.restore(env, child, None)
    assert steps == [1]
    codec.restore(env, child, None)
    assert steps == [1]
    env.step(2)
    codec.restore(env, child, None)
    assert steps == [1, 2, 1]


def test_a_new_seed_is_part_of_the_past() -> None:
    """What came after a new seed is replayed with it."""
    codec = ReplayCodec()
    env = Recorder(walk())
    env.reset(seed=1)
    root, _ = codec.capture(env)
    futures = []
    for seed in (1, 2, 1):
        codec.restore(env, root, seed)
        env.step(1)
        state, _ = codec.capture(env)
        wanted = future(env)
        assert future(codec.restore(Recorder(walk()), state, None)) == wanted
        futures.append(wanted)
    assert futures[0] == futures[2] != futures[1]


def test_a_replay_that_fails_leaves_no_past() -> None:
    """The next restore begins at the beginning."""
    env, codec = recorded(), ReplayCodec()
    env.step(1)
    state, _ = codec.capture(env)
    bad = codec.load([("begin", (1, None)), ("act", "no action")])
    with pytest.raises(ValueError, match="invalid literal"):
        codec.restore(env, bad, None)
    assert env.past is None
    assert future(codec.restore(env, state, None)) == future(codec.restore(recorded(), state, None))


def test_other_values_are_no_pasts() -> None:
    """Nothing but a beginning and what followed; and nothing of an environment that nobody recorded."""
    codec = ReplayCodec()
    for value in (
        None,
        [],
        [("act", 1)],
        [("begin", (1, None)), ("begin", (1, None))],
        [("begin", (1, None)), ("reseed", "x")],
        [("begin", (1, None)), ("eval", "x")],
        [("begin",)],
    ):
        with pytest.raises(BadState):
            codec.load(value)
    with pytest.raises(CannotCapture, match="not opened for snapshots"):
        codec.capture(walk())
    with pytest.raises(CannotCapture, match="not reset"):
        codec.capture(Recorder(walk()))
