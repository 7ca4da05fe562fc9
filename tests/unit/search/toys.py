"""Small worlds made of numbers that follow from a seed and the actions so far, and simulators that hold their states.

What a state shows is a number (`token`); its logits and value follow from that number alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from asyncrl.records import Array
from asyncrl.search import Expansion, Outcome, Root

Path = tuple[int, ...]


class Step(NamedTuple):
    """What one action leads to."""

    path: Path
    reward: float
    terminated: bool
    truncated: bool


@dataclass(frozen=True)
class Toy:
    """A random world. Its shares: of states that end, of actions that are illegal, of moves that leave the turn."""

    seed: int
    num_actions: int = 3
    ends: float = 0.15
    cuts: float = 0.1
    illegal: float = 0.25
    players: int = 1
    again: float = 0.2
    depth: int = 6  # every path ends there

    def rng(self, path: Path, use: str) -> random.Random:
        return random.Random(f"{self.seed} {path} {use}")

    def token(self, path: Path) -> int:
        return self.rng(path, "token").getrandbits(62)

    def step(self, path: Path, action: int) -> Step:
        if not self.mask(path)[action]:
            raise AssertionError(f"illegal action {action} after {path}")
        path = (*path, action)
        rng = self.rng(path, "step")
        terminated = len(path) >= self.depth or rng.random() < self.ends
        return Step(path, rng.uniform(-1, 1), terminated, not terminated and rng.random() < self.cuts)

    def mask(self, path: Path) -> list[bool]:
        rng = self.rng(path, "mask")
        mask = [rng.random() >= self.illegal for _ in range(self.num_actions)]
        mask[rng.randrange(self.num_actions)] = True
        return mask

    def to_play(self, path: Path) -> int | None:
        if self.players == 1:
            return None
        return sum(self.rng(path[: i + 1], "turn").random() >= self.again for i in range(len(path))) % 2

    def logits(self, token: int) -> list[float]:
        rng = random.Random(f"{token} logits")
        return [rng.gauss(0, 1) for _ in range(self.num_actions)]

    def value(self, token: int) -> float:
        return random.Random(f"{token} value").uniform(-1, 1)

    def root(self, path: Path = ()) -> Root:
        return Root(
            state=("root", path),
            obs=[np.array(self.token(path))],
            mask=np.array(self.mask(path)),
            to_play=self.to_play(path),
        )

    async def evaluate(self, obs: Sequence[Array], mask: Array | None, to_play: Array | None) -> tuple[Array, Array]:
        tokens = obs[0].tolist()
        return np.array([self.logits(t) for t in tokens]), np.array([self.value(t) for t in tokens])


@dataclass
class ToySimulator:
    """Holds paths. `fault` may fail an expansion by returning a status; `wait` is awaited before every wave."""

    toy: Toy
    fault: Callable[[Expansion], str] = lambda _expansion: ""
    wait: Callable[[], asyncio.Future[None]] | None = None
    states: dict[object, Path] = field(default_factory=dict)
    waves: list[list[Expansion]] = field(default_factory=list)
    released: list[int] = field(default_factory=list)

    async def simulate(self, wave: Sequence[Expansion]) -> list[Outcome]:
        self.waves.append(list(wave))
        if self.wait is not None:
            await self.wait()
        return [self._simulate(expansion) for expansion in wave]

    async def release(self, states: Sequence[int]) -> None:
        self.released += states
        for state in states:
            self.states.pop(state, None)

    def path_of(self, state: object) -> Path:
        if isinstance(state, tuple):
            path: Path = state[1]
            return path
        return self.states[state]

    def _simulate(self, asked: Expansion) -> Outcome:
        status = self.fault(asked)
        if status:
            return Outcome(status)
        path, rewards = self.path_of(asked.parent), []
        step = Step(path, 0.0, False, False)
        for action in asked.actions[0].tolist() if asked.actions else ():
            step = self.toy.step(step.path, action)
            rewards.append(step.reward)
            if step.terminated or step.truncated:
                break
        ended = step.terminated or step.truncated
        keeps = asked.keep_as is not None and not ended
        if keeps:
            self.states[asked.keep_as] = step.path
        rollout = random.Random(f"{step.path} {asked.rollout.seed}").uniform(-1, 1) if asked.rollout else 0.0
        return Outcome(
            obs=[np.array(self.toy.token(step.path))],
            rewards=rewards,
            terminated=step.terminated,
            truncated=step.truncated,
            mask=np.array(self.toy.mask(step.path)),
            to_play=self.toy.to_play(step.path),
            kept=keeps,
            rollout_return=rollout,
        )


@dataclass
class Bandit:
    """One step, and what it pays: each action's reward, or what `pay(action, rng)` says."""

    rewards: Sequence[float] | Callable[[int, np.random.Generator], float]
    num_simulated: int = 0

    async def simulate(self, wave: Sequence[Expansion]) -> list[Outcome]:
        self.num_simulated += len(wave)
        return [self._pulled(expansion) for expansion in wave]

    async def release(self, states: Sequence[int]) -> None:
        return

    def _pulled(self, asked: Expansion) -> Outcome:
        if not asked.actions:
            return Outcome()  # a rollout from the start, which returns nothing
        action = int(asked.actions[0][0])
        if callable(self.rewards):
            # In a frozen state the luck is that of the state, here the same for ever.
            reward = self.rewards(action, np.random.default_rng(0 if asked.rng == "frozen" else asked.seed))
        else:
            reward = self.rewards[action]
        return Outcome(obs=[np.zeros(1)], rewards=[reward], terminated=True)


class Fixed:
    """The same logits and value for every state; knows how many states it was asked about."""

    def __init__(self, logits: Sequence[float], value: float = 0.0) -> None:
        self._logits, self._value = logits, value
        self.num_asked = 0

    async def __call__(self, obs: Sequence[Array], mask: Array | None, to_play: Array | None) -> tuple[Array, Array]:
        self.num_asked += len(obs[0])
        return np.tile(np.array(self._logits, np.float64), (len(obs[0]), 1)), np.full(len(obs[0]), self._value)


ONE_STATE = Root(state=0, obs=[np.zeros(1)])
