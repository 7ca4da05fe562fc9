"""Luck of copied environments, begun anew."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from asyncrl.search import SearchConfig
from asyncrl.search.local import LocalSimulator, search_env
from asyncrl.search.local_luck import reseed
from tests.unit.search.test_local import expansion

Source = Callable[[Any], Any]


class Sources:
    """Generators somewhere within an environment."""

    def __init__(self, seed: int) -> None:
        self.generators = {"one": np.random.default_rng(seed), "two": [np.random.default_rng(seed + 1)]}
        self.state = np.random.RandomState(seed)
        self.other_state = np.random.RandomState(np.random.PCG64(seed))
        self.bits = np.random.SFC64(seed)
        self.plain = (random.Random(seed),)


SOURCES: dict[str, Source] = {
    "np_random": lambda env: env.np_random.random(),
    "alias": lambda env: env.alias.random(),
    "generator": lambda env: env.sources.generators["one"].random(),
    "nested": lambda env: env.sources.generators["two"][0].random(),
    "random_state": lambda env: env.sources.state.normal(),
    "random_state_of_another_kind": lambda env: env.sources.other_state.normal(),
    "bit_generator": lambda env: env.sources.bits.random_raw() / 2.0**64,
    "random": lambda env: env.sources.plain[0].random(),
    "space": lambda env: float(env.action_space.sample()),
    "nested_space": lambda env: float(env.observation_space["coin"].sample()),
}


class Coin(gymnasium.Env[Any, Any]):
    """Action 1 tosses a coin for 1 or -1, action 0 pays 0.1; which luck the coin has is the caller's choice."""

    def __init__(self, source: str) -> None:
        self.source = source

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.alias = self.np_random
        self.sources = Sources(seed or 0)
        self.action_space = spaces.Discrete(2, seed=seed)
        self.observation_space = spaces.Dict({"coin": spaces.Discrete(2)}, seed=seed)
        for draw in SOURCES.values():  # a cached half of a normal pair is part of the luck, too
            draw(self)
        return {"coin": 0}, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        lucky = SOURCES[self.source](self) < (0 if "state" in self.source else 0.5)
        return {"coin": 0}, (1.0 if lucky else -1.0) if action else 0.1, True, False, {}


def made(source: str, seed: int) -> Coin:
    env = Coin(source)
    env.reset(seed=seed)
    return env


@pytest.mark.parametrize("source", SOURCES)
async def test_every_generator_of_a_copy_begins_anew(source: str) -> None:
    """Wherever it is: the toss is the seed's and no state's, fair over seeds, and of frozen luck the state's alone."""
    one, two = made(source, 1), made(source, 2)
    tosses: list[list[float]] = []
    for env in (one, two):
        simulator = LocalSimulator(env)
        simulator.root(env)
        wave = [expansion([1], rng="resample", seed=seed) for seed in range(200)]
        tosses.append([outcome.rewards[0] for outcome in await simulator.simulate(wave)])
        frozen = await simulator.simulate([expansion([1], seed=seed) for seed in range(20)])
        assert len({outcome.rewards[0] for outcome in frozen}) == 1
    assert tosses[0] == tosses[1]
    assert abs(np.mean(tosses[0])) < 0.25  # 200 tosses: three and a half standard deviations


@pytest.mark.parametrize(
    "source",
    ["np_random", "random", *(pytest.param(one, marks=pytest.mark.slow) for one in ("generator", "random_state"))],
)
async def test_a_search_does_not_know_how_the_coin_will_fall(source: str) -> None:
    """Over many seeds it earns no more than without foresight; who saw the coin would earn more than a half."""
    earned = []
    config = SearchConfig(num_simulations=20, leaf="zero", discount=1.0)
    for seed in range(60):
        env = made(source, seed)
        result = await search_env(env, config, np.random.default_rng(seed))
        earned.append(env.step(result.action)[1])
    assert np.mean(earned) < 0.35  # 60 tosses: three standard deviations above 0.1 at most


def test_streams_differ() -> None:
    """Generators that began alike do not go on alike."""
    env = made("generator", 1)
    memo: dict[int, Any] = {}
    copied = copy.deepcopy(env, memo)
    reseed(copied, memo.values(), 5)
    drawn = [copied.np_random.random(), *(SOURCES[name](copied) for name in ("generator", "nested", "random"))]
    assert len(set(drawn)) == len(drawn)


async def test_generators_that_are_shared_are_left_alone() -> None:
    """What a copy has in common with the environment is not touched; its own luck begins anew all the same."""
    env, twin = made("np_random", 3), made("np_random", 3)
    simulator = LocalSimulator(env, shared=("sources",))
    simulator.root(env)
    await simulator.simulate([expansion([0], rng="resample", seed=seed) for seed in range(3)])
    for name, draw in SOURCES.items():
        assert draw(env) == draw(twin), name


def test_luck_that_was_never_drawn_is_the_seeds() -> None:
    """An environment without a generator yet gets one."""
    found = []
    for _ in range(2):
        env = Coin("np_random")
        reseed(env, (), 5)
        found.append(env.np_random.random())
    assert found[0] == found[1]
