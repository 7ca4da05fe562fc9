"""`LedgerEnv`: an environment whose every observation says what it is, and which journals every call.

It does not know its fleet slot. The seed of its first reset is its identity, and a nonce drawn at construction tells
two instances of one seed apart. Its faults come from a seeded rule or from flag files; all are in `ENV_FAULTS`.

    rates   {"raise_step": 0.001}: at every call with that probability, decided by (seed, episode, t)
    flags   a directory. `NAME` there fires once, in whichever instance takes it first; `NAME@SEED` once, in the
            instance of that seed; `NAME.always` at every call of every instance
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np
import numpy.typing as npt

from tests.rig import ledger_rules as rules
from tests.rig.ledger_rules import Journal, RecordKind

JOURNAL_VARIABLE: Final = "ASYNCRL_LEDGER_JOURNAL"
FLAGS_VARIABLE: Final = "ASYNCRL_LEDGER_FLAGS"
DEFAULT_OBS_BYTES: Final = 64
NUM_ACTIONS: Final = 1 << 16

Obs = npt.NDArray[np.uint8]


class LedgerFault(RuntimeError):
    """What the environment raises when told to."""


def _raise() -> None:
    raise LedgerFault("told to raise")


def _hang_python() -> None:
    while True:
        time.sleep(0.05)


def _hang_gil() -> None:
    ctypes.PyDLL(None).sleep(3600)  # PyDLL, unlike CDLL, keeps the GIL during the call


def _segv() -> None:
    ctypes.string_at(0)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _exit() -> None:
    os._exit(3)


def _slow() -> None:
    time.sleep(0.05)


def _flood() -> None:
    line = b"x" * 1023 + b"\n"
    for _ in range(8):
        os.write(1, line * 1024)
        os.write(2, line * 1024)


def _grandchild() -> None:
    subprocess.Popen(["sleep", "600"], start_new_session=False)


# name -> (moment: "ctor", "reset" or "step"; what happens)
ENV_FAULTS: Final[dict[str, tuple[str, Callable[[], None]]]] = {
    "raise_ctor": ("ctor", _raise),
    "raise_reset": ("reset", _raise),
    "raise_step": ("step", _raise),
    "hang_python": ("step", _hang_python),
    "hang_gil": ("step", _hang_gil),
    "hang_reset": ("reset", _hang_python),
    "segv": ("step", _segv),
    "kill": ("step", _kill),
    "exit": ("step", _exit),
    "slow": ("step", _slow),
    "flood": ("step", _flood),
    "grandchild": ("step", _grandchild),
}
# Faults of the returned arrays rather than of the call.
BAD_RETURNS: Final = ("nan_reward", "short_obs", "float_obs")


class LedgerEnv(gymnasium.Env[Obs, np.int64]):
    """See the module. `build_s` makes constructing slow, `step_s` every step."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own class attribute

    def __init__(
        self,
        *,
        mean_length: int = 20,
        obs_bytes: int = DEFAULT_OBS_BYTES,
        rates: Mapping[str, float] | None = None,
        flags: str = "",
        journal: str | Journal = "",
        step_s: float = 0.0,
        build_s: float = 0.0,
    ) -> None:
        if obs_bytes % 8 or obs_bytes < rules.MIN_OBS_BYTES:
            raise ValueError(f"obs_bytes is a multiple of 8 from {rules.MIN_OBS_BYTES} on, not {obs_bytes}")
        self.observation_space = gymnasium.spaces.Box(0, 255, (obs_bytes,), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(NUM_ACTIONS)
        self._rates = _checked(rates or {})
        flag_dir = flags or os.environ.get(FLAGS_VARIABLE, "")
        self._flags = Path(flag_dir) if flag_dir else None
        self._mean_length, self._num_words, self._step_s = mean_length, obs_bytes // 8, step_s
        self._nonce = int.from_bytes(os.urandom(8), "little")
        self._seed: int | None = None
        self._episode, self._t = -1, 0
        self._end = rules.EpisodeEnd(0, True)
        self._fire("ctor")
        time.sleep(build_s)
        if isinstance(journal, Journal):
            self._journal = journal
        else:
            self._journal = Journal(journal or os.environ.get(JOURNAL_VARIABLE) or None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """A seed given later than at the first reset changes nothing: identity stays."""
        super().reset(seed=seed)
        if self._seed is None:
            self._seed = int(self.np_random.integers(1 << 62)) if seed is None else seed
        self._fire("reset")
        self._episode, self._t = self._episode + 1, 0
        self._end = rules.end_of(self._seed, self._episode, self._mean_length)
        obs = self._observe(rules.NO_ACTION)
        self._write(RecordKind.RESET, rules.NO_ACTION, 0.0)
        return obs, {}

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """A step after the end of an episode raises, as it should in every environment."""
        if self._seed is None or self._t >= self._end.length:
            raise LedgerFault(f"step {self._t} of an episode that has {self._end.length}: it ended")
        self._fire("step")
        if self._step_s:
            time.sleep(self._step_s)
        taken = int(action)
        reward = rules.reward_of(self._seed, self._episode, self._t, taken)
        self._t += 1
        obs = self._observe(taken)
        self._write(RecordKind.STEP, taken, reward)
        last = self._t == self._end.length
        terminated, truncated = last and self._end.terminated, last and not self._end.terminated
        return (*self._spoil(obs, reward), terminated, truncated, {})

    def close(self) -> None:
        self._journal.close()

    def _observe(self, action: int) -> Obs:
        assert self._seed is not None
        return rules.observe(self._nonce, self._seed, self._episode, self._t, action, self._num_words)

    def _write(self, kind: RecordKind, action: int, reward: float) -> None:
        assert self._seed is not None
        self._journal.append(kind, self._nonce, self._seed, (self._episode, self._t), action, reward)

    def _fire(self, moment: str) -> None:
        flags = self._flags_up()
        for name, (when, happen) in ENV_FAULTS.items():
            if when == moment and self._is_due(name, flags):
                happen()

    def _spoil(self, obs: Obs, reward: float) -> tuple[Any, float]:
        flags = self._flags_up()
        if self._is_due("nan_reward", flags):
            return obs, float("nan")
        if self._is_due("short_obs", flags):
            return obs[:-1], reward
        if self._is_due("float_obs", flags):
            return obs.astype(np.float32), reward
        return obs, reward

    def _flags_up(self) -> list[str]:
        return [] if self._flags is None else [file.name for file in self._flags.iterdir()]

    def _is_due(self, name: str, flags: list[str]) -> bool:
        rate = self._rates.get(name, 0.0)
        if rate:
            salt = int.from_bytes(name.encode()[:8], "little")
            drawn = rules.mix(rules.place(self._seed or self._nonce, max(self._episode, 0), self._t) ^ salt)
            if drawn < rate * 2.0**64:
                return True
        if f"{name}.always" in flags:
            return True
        return any(flag in flags and self._take(flag) for flag in (name, f"{name}@{self._seed}"))

    def _take(self, flag: str) -> bool:
        assert self._flags is not None
        try:
            (self._flags / flag).unlink()  # of several instances that see the flag, one succeeds
        except FileNotFoundError:
            return False
        return True


def _checked(rates: Mapping[str, float]) -> dict[str, float]:
    unknown = set(rates) - set(ENV_FAULTS) - set(BAD_RETURNS)
    if unknown:
        raise ValueError(f"no such faults: {sorted(unknown)}; there are {sorted(ENV_FAULTS)} and {BAD_RETURNS}")
    return dict(rates)


def make(**kwargs: Any) -> LedgerEnv:
    """The entry point: `ledger=tests.rig.ledger_env:make{"mean_length":50}`."""
    return LedgerEnv(**kwargs)


if __name__ == "__main__":  # how fast one instance is, for choosing sizes of tests
    env = make(**({"journal": sys.argv[1]} if len(sys.argv) > 1 else {}))
    env.reset(seed=1)
    began, steps = time.perf_counter(), 50_000
    for number in range(steps):
        if any(env.step(np.int64(number % NUM_ACTIONS))[2:4]):
            env.reset()
    print(f"{(time.perf_counter() - began) / steps * 1e6:.1f} µs a step")
