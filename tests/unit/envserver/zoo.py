"""Environments made for tests: every kind of space, hostile infos, and faults on schedule."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

HERE = "tests.unit.envserver.zoo"


class MixedEnv(gymnasium.Env[Any, Any]):
    """Composite spaces both ways; the observation repeats the last action, so that its way can be followed."""

    observation_space = spaces.Dict(
        {
            "where": spaces.Box(-10, 10, (2, 3), np.float32),
            "action": spaces.Tuple((spaces.Discrete(5, start=2), spaces.Box(-1, 1, (2,), np.float64))),
            "bits": spaces.MultiBinary(4),
            "many": spaces.MultiDiscrete([3, 4]),
        }
    )
    action_space = spaces.Dict(
        {"z": spaces.Discrete(5, start=2), "a": spaces.Box(-1, 1, (2,), np.float64), "m": spaces.MultiBinary(2)}
    )

    def __init__(self, length: int = 7) -> None:
        self._length = length
        self._t = 0
        self._action: dict[str, Any] = {"z": np.int64(2), "a": np.zeros(2)}

    def _obs(self) -> dict[str, Any]:
        return {
            "where": self.np_random.uniform(-10, 10, (2, 3)),  # float64: cast as Gymnasium casts
            "action": (self._action["z"], self._action["a"]),
            "bits": [1, 0, 1, self._t % 2],
            "many": np.array([self._t % 3, 1]),
        }

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"t": self._t, "odd": bool(self._t % 2), "half": self._t / 2}
        info["nested"] = {"array": np.full((2, 2), self._t, np.int16), "deep": {"f4": np.float32(0.5)}}
        if self._t % 3 == 0:
            info["sometimes"] = float(self._t)
        info["text"] = "dropped"
        return info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0 if options is None else int(options.pop("start", 0))
        return self._obs(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert list(action) == list(self.action_space.spaces)
        assert self.action_space.contains(action), action
        self._action = action
        self._t += 1
        ends = self._t >= self._length
        return self._obs(), float(self._t), ends, ends and self._t % 2 == 1, self._info()


def mixed(length: int = 7) -> gymnasium.Env[Any, Any]:
    return MixedEnv(length)


class ScriptedEnv(gymnasium.Env[Any, Any]):
    """Counts; raises or misbehaves as its script says.

    `faults` maps "build:N", "reset:N:K" and "step:N:K" to what happens in the N-th environment built since
    `ScriptedEnv.built` was set to 0, at its K-th reset or step ("*" for every one): "raise", or the name of a
    bad value below.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(3)
    built = 0

    def __init__(self, faults: dict[str, str] | None = None, length: int = 5) -> None:
        self._faults = faults or {}
        self.number = ScriptedEnv.built
        ScriptedEnv.built += 1
        self._length = length
        self._resets = self._steps = self._t = 0
        self._closed = False
        self._fail("build", 0)

    def _fail(self, what: str, count: int) -> str:
        keys = [f"{what}:{number}:{at}" for number in (self.number, "*") for at in (count, "*")]
        keys += [f"{what}:{self.number}", f"{what}:*"] if what == "build" else []
        for key in keys:
            if key in self._faults:
                if self._faults[key] == "raise":
                    raise RuntimeError(f"{what} fails as scripted in /home/me/secret/place.cfg")
                return self._faults[key]
        return ""

    def _obs(self) -> Any:
        return np.array([self.number, self._t], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        bad = self._fail("reset", self._resets)
        self._resets += 1
        self._t = 0
        info = {"seed": -1 if seed is None else seed, "draw": int(self.np_random.integers(1 << 30))}
        return (np.zeros(3) if bad == "shape" else self._obs()), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        bad = self._fail("step", self._steps)
        self._steps += 1
        self._t += 1
        obs, reward, info = self._obs(), 1.0, dict[str, Any]()
        values = {
            "shape": (np.zeros(3, np.float32), reward, info),
            "dtype": (np.array(["a", "b"]), reward, info),
            "complex": (np.zeros(2, np.complex64), reward, info),
            "none": (None, reward, info),
            "ragged": ([1.0, [2.0]], reward, info),
            "reward": (obs, "1.0", info),
            "no reward": (obs, None, info),
            "complex reward": (obs, 1j, info),
            "info": (obs, reward, [1]),
            "nan": (obs, float("nan"), info),
            "inf obs": (np.full(2, np.inf, np.float32), reward, info),
        }
        if bad == "tuple":
            return (obs, reward)  # type: ignore[return-value]
        if bad == "ends":
            return obs, reward, np.array([True, False]), False, info
        obs, reward, info = values.get(bad, (obs, reward, info))  # type: ignore[assignment]
        return obs, reward, self._t >= self._length, False, info


def scripted(faults: dict[str, str] | None = None, length: int = 5) -> gymnasium.Env[Any, Any]:
    return ScriptedEnv(faults, length)


class MaskedEnv(gymnasium.Env[Any, Any]):
    """Two players in turn; action masks in every info, as one array or as MultiDiscrete's tuple."""

    observation_space = spaces.Discrete(100)

    def __init__(self, multi: bool = False, width: int = 3, at_reset: bool = True) -> None:
        self.action_space = spaces.MultiDiscrete([2, 3]) if multi else spaces.Discrete(3)
        self._multi, self._width, self._at_reset = multi, width, at_reset
        self._t = 0

    def _info(self) -> dict[str, Any]:
        mask = np.array([self._t % 2, 1, 0][: self._width], np.int8)
        both = (np.array([1, 0], np.int8), mask)
        return {"action_mask": both if self._multi else mask, "to_play": self._t % 2}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return self._t, self._info() if self._at_reset else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        return self._t, 0.0, self._t >= 4, False, self._info()


def masked(multi: bool = False, width: int = 3, at_reset: bool = True) -> gymnasium.Env[Any, Any]:
    return MaskedEnv(multi, width, at_reset)


class GraphEnv(ScriptedEnv):
    """A space that has no wire form."""

    observation_space = spaces.Graph(spaces.Box(0, 1, (1,)), None)  # type: ignore[assignment]


def graph() -> gymnasium.Env[Any, Any]:
    return GraphEnv()


def not_an_env() -> Any:
    return object()


class PictureEnv(ScriptedEnv):
    """Renders if it was told to, as Gymnasium's environments do."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012 - Gymnasium's declaration

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__({}, 5)
        self.render_mode = render_mode

    def render(self) -> Any:
        return None if self.render_mode is None else np.full((2, 3, 3), 7, np.uint8)


def picture(render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.OrderEnforcing(PictureEnv(render_mode))


def picture_by_kwargs(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    return PictureEnv(**kwargs)


def picture_never(render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """Takes the mode and does not hand it on."""
    return PictureEnv()


def plain_by_kwargs(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    return ScriptedEnv({}, 5)


def options(alias: str, entry_point: str, text: str = "") -> str:
    """An `--env` option for an environment of this module."""
    return f"{alias}={HERE}:{entry_point}{text}"
