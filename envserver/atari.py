"""Atari 2600 games with the standard preprocessing, built so that both hosts show the same frames.

Per step of the agent: `frameskip` frames, the maximum of the last two, grey, resized to a square,
a stack of the newest `stack` frames that starts with zeros. Episodes are truncated after 108000
frames, no-ops of the reset not counted. Nothing clips rewards, and a lost life never restarts a
game: with `soft_ends` it is reported, and the game goes on.

Invariants: with `noop_max` 0 and no sticky actions the frames of both hosts are equal bit by bit
(test_native_frames_equal_those_of_the_slots); ALE draws the sticky actions itself, but where states will be held
(test_the_settings_reach_the_game), and there they are those of ALE, given the same random numbers
(test_sticky_actions_are_those_of_ale).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TimeLimit

MAX_FRAMES: Final = 108_000
SOFT_END: Final = "soft_end"  # the info key by which a wrapper tells its host

AnyEnv = gymnasium.Env[Any, Any]


@dataclass(frozen=True)
class AtariSettings:
    """One preprocessed game; the fields after `env_id` are the kwargs of its alias."""

    env_id: str
    game: str
    repeat_action_probability: float
    frameskip: int = 4
    noop_max: int = 30
    screen_size: int = 84
    grayscale: bool = True
    stack: int = 4
    soft_ends: bool = False
    full_action_space: bool = False
    max_episode_steps: int = 0
    mode: int | None = None
    difficulty: int | None = None

    @staticmethod
    def of(env_id: str, kwargs: Mapping[str, Any]) -> AtariSettings:
        """Settings from an alias's kwargs; what is missing is as Gymnasium registered the id."""
        registered = gymnasium.spec(env_id).kwargs
        known = {field.name for field in fields(AtariSettings)}
        unknown = sorted(set(kwargs) - known)
        if unknown:
            raise TypeError(f"unknown settings of the Atari preprocessing: {', '.join(unknown)}")
        merged = {"repeat_action_probability": registered["repeat_action_probability"], **kwargs}
        merged.setdefault("max_episode_steps", MAX_FRAMES // merged.get("frameskip", 4))
        return AtariSettings(env_id, registered["game"], **merged)

    def make(self, render_mode: str | None, *, capturable: bool = False) -> AnyEnv:
        """One game for a slot; `capturable`: one whose states can be held, sticky actions among them."""
        options = {name: getattr(self, name) for name in ("mode", "difficulty") if getattr(self, name) is not None}
        env: AnyEnv = gymnasium.make(
            self.env_id,
            disable_env_checker=True,
            frameskip=1,
            repeat_action_probability=0.0 if capturable else self.repeat_action_probability,
            full_action_space=self.full_action_space,
            max_num_frames_per_episode=None,
            # AtariPreprocessing fetches its own screens; this is only what the game renders in vain.
            obs_type="grayscale" if self.grayscale else "rgb",
            render_mode=render_mode,
            **options,
        )
        if capturable and self.repeat_action_probability > 0.0:
            env = StickyActions(env, self.repeat_action_probability)
        env = AtariPreprocessing(
            env,
            noop_max=self.noop_max,
            frame_skip=self.frameskip,
            screen_size=self.screen_size,
            grayscale_obs=self.grayscale,
        )
        env = TimeLimit(env, self.max_episode_steps)
        env = FrameStackObservation(env, self.stack, padding_type="zero")
        return LifeLossSoftEnds(env) if self.soft_ends else env


class StickyActions(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Each frame the action of the frame before is repeated with a probability: what ALE does itself, outside of it.

    Only for games whose states will be held: ALE keeps the action that it repeats to itself, and a state of the
    emulator that is restored does not bring it back.
    """

    def __init__(self, env: AnyEnv, probability: float) -> None:
        super().__init__(env)
        self.probability = probability
        self.last: Any = 0
        self.random = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.random = np.random.default_rng([seed, 0x571C])
        self.last = 0  # NOOP
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.random.random() >= self.probability:
            self.last = action
        return self.env.step(self.last)


class LifeLossSoftEnds(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Puts `soft_end: True` into the info of a step that cost a life and did not end the game."""

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self._lives = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._lives = info["lives"]
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives = info["lives"]
        if lives < self._lives and not (terminated or truncated):
            info[SOFT_END] = True
        self._lives = lives
        return obs, reward, terminated, truncated, info


def rom_md5(game: str) -> str:
    """The digest of a game's ROM, which decides what the game does."""
    from ale_py import roms

    path = roms.get_rom_path(game)
    if path is None:
        raise LookupError(f"ale-py has no ROM {game!r}")
    return hashlib.md5(Path(path).read_bytes(), usedforsecurity=False).hexdigest()
