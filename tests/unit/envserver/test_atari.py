"""Settings of preprocessed games; the frames themselves are compared in test_native_atari."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import ale_py  # noqa: F401  registers the ids
import pytest
from ale_py import roms

from envserver.atari import SOFT_END, AtariSettings, rom_md5


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
    """Mode, difficulty, action set and sticky actions are the simulator's own."""
    settings = {"mode": 4, "difficulty": 1, "full_action_space": True, "repeat_action_probability": 0.5}
    env = AtariSettings.of("ALE/Breakout-v5", {**settings, "stack": 2, "screen_size": 30}).make(None)
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
