"""Settings of preprocessed games; the frames themselves are compared in test_native_atari."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import ale_py  # noqa: F401  registers the ids
import gymnasium
import numpy as np
import pytest
from ale_py import roms

from envserver.atari import SOFT_END, AtariSettings, StickyActions, rom_md5


def sticky_of(env: Any) -> StickyActions:
    while not isinstance(env, StickyActions):
        env = env.env
    return env


class Draws:
    """The random numbers that ALE is about to draw for its sticky actions, read from a state of the emulator: two a
    frame, one for each player."""

    def __init__(self, ale: Any) -> None:
        words = ale.cloneState(include_rng=True).serialize()[:-8].split(b" ")[-625:]
        words[0] = words[0][-10:].lstrip(bytes(range(32)))
        self._bits = np.random.RandomState()
        self._bits.set_state(("MT19937", np.array(words[:624], np.uint64).astype(np.uint32), int(words[624]), 0, 0.0))

    def random(self) -> float:
        first, _ = np.frombuffer(self._bits.bytes(8), "<u4")
        return float(first) / 2**32


@pytest.mark.parametrize("probability", [0.25, 0.75])
def test_sticky_actions_are_those_of_ale(probability: float) -> None:
    """Given the random numbers that ALE itself draws, every frame's memory is that of ALE's own sticky actions."""
    made = [
        gymnasium.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=each, disable_env_checker=True)
        for each in (probability, 0.0)
    ]
    for env in made:
        env.reset(seed=5)
    theirs, ours = made[0].unwrapped, StickyActions(made[1], probability)
    games: list[Any] = [theirs, ours.unwrapped]
    ours.reset()
    games[1].ale.restoreState(games[0].ale.cloneState())
    ours.random = Draws(games[0].ale)  # type: ignore[assignment]
    for action in np.random.default_rng(0).integers(4, size=300).tolist():
        theirs.step(action)
        ours.step(action)
        assert games[0].ale.getRAM().tobytes() == games[1].ale.getRAM().tobytes()


def test_sticky_actions_follow_the_seed() -> None:
    """The same seed repeats the same frames; an unseeded reset goes on with the same stream."""
    env = AtariSettings.of("ALE/Pong-v5", {"noop_max": 0}).make(None, capturable=True)

    def play(seed: int) -> list[Any]:
        found = []
        for given in (seed, None):
            env.reset(seed=given)
            found.append([env.step(2 + step % 2)[0].tobytes() for step in range(40)])
        return found

    assert play(1) == play(1)
    assert play(1) != play(2)
    assert play(1)[0] != play(1)[1]


def test_what_is_not_said_is_as_registered() -> None:
    """Sticky actions of the id, 108000 frames, nothing that restarts games or clips rewards."""
    settings = AtariSettings.of("ALE/Pong-v5", {})
    assert settings == AtariSettings("ALE/Pong-v5", "pong", 0.25, max_episode_steps=27_000)
    assert AtariSettings.of("ALE/Pong-v5", {"frameskip": 3, "repeat_action_probability": 0.0}) == AtariSettings(
        "ALE/Pong-v5", "pong", 0.0, frameskip=3, max_episode_steps=36_000
    )


def test_unknown_settings_are_refused() -> None:
    """An owner's typing error does not go unnoticed."""
    with pytest.raises(TypeError, match=r"unknown settings.*nop_max"):
        AtariSettings.of("ALE/Pong-v5", {"nop_max": 3})


def test_the_settings_reach_the_game() -> None:
    """Mode, difficulty and action set are the simulator's own; sticky actions too, but where states will be held."""
    settings = {"mode": 4, "difficulty": 1, "full_action_space": True, "repeat_action_probability": 0.5}
    chosen = AtariSettings.of("ALE/Breakout-v5", {**settings, "stack": 2, "screen_size": 30})
    held = chosen.make(None, capturable=True)
    assert held.unwrapped.ale.getFloat("repeat_action_probability") == 0.0  # type: ignore[attr-defined]
    assert sticky_of(held).probability == 0.5
    held.close()
    env = chosen.make(None)
    game: Any = env.unwrapped
    assert game.ale.getFloat("repeat_action_probability") == 0.5
    assert (game._game_mode, game._game_difficulty, game.action_space.n) == (4, 1, 18)
    assert env.observation_space.shape == (2, 30, 30)
    env.close()


def test_a_lost_life_is_said_once_and_the_game_goes_on() -> None:
    """The last life is an end and no soft one; a reset does not count as a loss."""
    kwargs = {"noop_max": 0, "repeat_action_probability": 0.0, "soft_ends": True}
    env = AtariSettings.of("ALE/Breakout-v5", kwargs).make(None)
    env.reset(seed=1)
    lives, soft = [5], []
    for step in range(2000):
        _, _, terminated, _, info = env.step(step % 4)
        assert (SOFT_END in info) == (info["lives"] < lives[-1] and not terminated)
        soft.append(SOFT_END in info)
        lives.append(info["lives"])
        if terminated:
            break
    assert (lives[-1], sum(soft)) == (0, 4)
    env.reset()
    assert SOFT_END not in env.step(0)[4]
    env.close()


def test_roms_are_known_by_their_digest() -> None:
    """The file's MD5, which ALE's own list uses as well."""
    path = roms.get_rom_path("pong")
    assert path is not None
    assert rom_md5("pong") == hashlib.md5(Path(path).read_bytes(), usedforsecurity=False).hexdigest()
    with pytest.raises(LookupError, match="no ROM 'no_such_game'"), pytest.warns(UserWarning, match="not supported"):
        rom_md5("no_such_game")
