"""What every simulator promises, and what a search asks of it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from asyncrl.search import Root, SearchConfig, search
from asyncrl.search.local import LocalSimulator
from asyncrl.search.simulator import Expansion, Outcome, Rollout, Simulator
from tests.unit.search.toys import Toy, ToySimulator


def toy() -> tuple[Simulator, Root]:
    world = Toy(4, 2, ends=0.0, cuts=0.0, illegal=0.0)
    return ToySimulator(world), world.root()


def cartpole() -> tuple[Simulator, Root]:
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=1)
    simulator = LocalSimulator(env)
    return simulator, simulator.root(env)


@pytest.mark.parametrize("make", [toy, cartpole])
async def test_a_simulator_keeps_its_promises(make: Any) -> None:
    """One outcome each, in order; states by the names they were given; rollouts without a step; release."""
    simulator, root = make()
    action = [np.array([1])]
    first = Expansion(0, root.state, action, 10**9, "frozen", 1, None)
    tail = first._replace(actions=(), keep_as=None, rollout=Rollout(5, 1.0, 3))
    outcomes = await simulator.simulate([first, tail, first._replace(keep_as=None, actions=[np.array([0])])])
    assert [outcome.status for outcome in outcomes] == ["ok"] * 3
    assert [outcome.kept for outcome in outcomes] == [True, False, False]
    assert [len(outcome.rewards) for outcome in outcomes] == [1, 0, 1]
    [second] = await simulator.simulate([first._replace(parent=10**9, keep_as=10**9 + 1)])
    [long] = await simulator.simulate([first._replace(actions=[np.array([1, 1])], keep_as=None)])
    assert second.rewards[-1] == long.rewards[-1]
    np.testing.assert_array_equal(second.obs[0], long.obs[0])
    await simulator.release([10**9, 10**9 + 1])
    await simulator.release([10**9])


async def test_what_a_search_asks_for() -> None:
    """Names above 0 that never come twice, parents that are roots or names given before, seeds that differ."""
    world = Toy(4, 3, ends=0.0, cuts=0.0, depth=99)
    simulator = ToySimulator(world)
    for _ in range(2):
        config = SearchConfig(num_simulations=30, waves=4)
        await search([world.root(), world.root()], simulator, world.evaluate, config, np.random.default_rng(0))
    asked = [expansion for wave in simulator.waves for expansion in wave]
    names = [expansion.keep_as for expansion in asked]
    assert None not in names
    assert len(set(names)) == len(names) == 120
    assert min(name for name in names if name is not None) > 0
    known: dict[int, set[Any]] = {0: {("root", ())}, 1: {("root", ())}}
    for expansion in asked:
        assert expansion.parent in known[expansion.root]
        known[expansion.root].add(expansion.keep_as)
    assert len({expansion.seed for expansion in asked[:60]}) == 60


def test_an_outcome_says_no_more_than_it_must() -> None:
    """A failure needs a word, a plain step its observation and reward."""
    failed = Outcome("deadline")
    assert (failed.status, failed.kept, failed.mask, failed.to_play) == ("deadline", False, None, None)
    assert Outcome(obs=[np.zeros(1)], rewards=[1.0]).status == "ok"
