"""What every codec has to keep to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import wrappers

from envserver.snapshots.codec import AnyEnv, Codec, layers_of
from envserver.snapshots.copying import CopyCodec
from envserver.snapshots.probing import fields_codec
from envserver.snapshots.replay import Recorder, ReplayCodec
from envserver.snapshots.simulators import key_state_codec, simulator_codec
from tests.unit.envserver.snapshots import toys

KINDS: dict[str, tuple[Callable[[], AnyEnv], Callable[[AnyEnv], Codec]]] = {
    "fields": (toys.nested, fields_codec),
    "own state": (toys.own_state, simulator_codec),
    "key state": (toys.key_state, key_state_codec),
    "deepcopy": (toys.copy_only, CopyCodec),
    "replay": (lambda: Recorder(toys.uncopyable()), lambda _: ReplayCodec()),
}


def look(env: AnyEnv, first: int, end: int) -> list[Any]:
    """What the actions of these numbers give."""
    found = []
    for number in range(first, end):
        obs, reward, terminated, truncated, _ = env.step(number % 3)
        found.append((np.array(obs).tobytes(), float(reward), terminated, truncated))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_never_written_into(kind: str) -> None:
    """However often a state is restored and stepped from, it and its children give the same futures again."""
    make, make_codec = KINDS[kind]
    env = make()
    env.reset(seed=1)
    codec = make_codec(env)
    look(env, 0, 3)
    root, nbytes = codec.capture(env)
    assert nbytes > 0
    wanted = look(env, 0, 12)
    for steps in (0, 5, 9):
        env = codec.restore(env, root, None)
        assert look(env, 0, steps) == wanted[:steps]
        child, _ = codec.capture(env)
        assert look(env, steps, 12) == wanted[steps:]
        for state, first in ((child, steps), (root, 0)):
            env = codec.restore(env, state, None)
            assert look(env, first, 12) == wanted[first:]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said_of_a_codec_holds(kind: str) -> None:
    """Exportable ones survive their dump; those that remember no observation give none."""
    make, make_codec = KINDS[kind]
    env, other = make(), make()
    env.reset(seed=1)
    other.reset(seed=2)
    codec = make_codec(env)
    look(env, 0, 4)
    state, _ = codec.capture(env)
    wanted = look(env, 0, 6)
    assert (codec.observe(env) is not None) == codec.remembers_obs
    if codec.exportable:
        assert look(codec.restore(other, codec.load(codec.dump(state)), None), 0, 6) == wanted


def test_layers_are_from_the_outside_in() -> None:
    """The last one is the simulator."""
    env = wrappers.TimeLimit(wrappers.TransformReward(toys.walk(), float), 3)
    assert [type(layer).__name__ for layer in layers_of(env)] == ["TimeLimit", "TransformReward", "WalkEnv"]
    assert layers_of(env)[-1] is env.unwrapped
