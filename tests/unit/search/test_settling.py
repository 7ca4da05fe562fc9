"""What comes back: luck of every kind, ways of several steps, players."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from asyncrl.search import Expansion, Outcome, Root, SearchConfig, SearchResult, search
from asyncrl.search.tree import EXPANDED, TERMINAL
from tests.unit.search.toys import Bandit, Fixed, Toy, ToySimulator


def coin(action: int, rng: np.random.Generator) -> float:
    """Action 0 pays 0.1, action 1 a fair coin of ±1."""
    return 0.1 if action == 0 else float(rng.choice([-1.0, 1.0]))


class Coins(Bandit):
    """Each root's state is an episode, with luck of its own in it."""

    def _pulled(self, asked: Expansion) -> Outcome:
        assert isinstance(asked.parent, int)
        rng = np.random.default_rng(asked.parent if asked.rng == "frozen" else asked.seed)
        return Outcome(obs=[np.zeros(1)], rewards=[coin(int(asked.actions[0][0]), rng)], terminated=True)


def flip(rng: Any, num_roots: int, num_simulations: int = 50, **settings: Any) -> list[SearchResult]:
    config = SearchConfig(num_simulations=num_simulations, rng=rng, discount=1.0, **settings)
    roots = [Root(state=episode, obs=[np.zeros(1)]) for episode in range(num_roots)]
    return asyncio.run(search(roots, Coins([]), Fixed([0.0, 0.0]), config, np.random.default_rng(0)))


def test_luck_that_is_drawn_anew_is_no_skill() -> None:
    """A fair coin against a sure 0.1: with luck drawn anew the root is worth 0 to 0.1, on average over episodes.

    A search that knows the luck of its state thinks it is worth about 0.55.
    """
    for rng in ("resample", "open_loop"):
        values = np.array([result.root_value for result in flip(rng, 400)])
        error = values.std() / 20
        assert -3 * error <= values.mean() <= 0.1 + 3 * error, rng
    clairvoyant = np.mean([result.root_value for result in flip("frozen", 400, 200)])
    assert clairvoyant == pytest.approx(0.55, abs=0.1)


def test_edges_with_luck_are_means_of_what_was_drawn() -> None:
    """Each visit draws: q is the mean of that many coins, and so is the reward below it in expectation."""
    [result] = flip("resample", 1, 400, c1=50.0)
    visits, q = int(result.visits[1]), float(result.q[1])
    heads = (q + 1) / 2 * visits
    assert heads == pytest.approx(round(heads))
    assert abs(q) < 4 / np.sqrt(visits)
    assert result.q[0] == pytest.approx(0.1)


class Wobbly:
    """Two steps. Action 1 ends the episode half of the time; going on and then 0 pays 1. States are words."""

    def __init__(self) -> None:
        self.asked: list[Expansion] = []

    async def simulate(self, wave: Sequence[Expansion]) -> list[Outcome]:
        self.asked += wave
        return [self._one(expansion) for expansion in wave]

    async def release(self, states: Sequence[int]) -> None:
        return

    def _one(self, asked: Expansion) -> Outcome:
        rng = np.random.default_rng(asked.seed)
        actions = asked.actions[0].tolist()
        depth = 0 if asked.parent == "start" else 1
        rewards: list[float] = []
        for action in actions:
            depth += 1
            if depth == 1 and action == 1 and rng.random() < 0.5:
                return Outcome(obs=[np.full(1, -1.0)], rewards=[*rewards, -1.0], terminated=True)
            rewards.append(1.0 if depth == 2 and action == 0 else 0.0)
        return Outcome(obs=[np.full(1, float(depth))], rewards=rewards, terminated=depth == 2, kept=depth < 2)


def test_open_loop_draws_luck_anew_each_time() -> None:
    """Sequences of actions from the root, each with luck of its own: an end on the way is one of several outcomes."""
    world = Wobbly()
    config = SearchConfig(num_simulations=600, rng="open_loop", discount=1.0, c1=20.0)
    [result] = asyncio.run(
        search([Root(state="start", obs=[np.zeros(1)])], world, Fixed([0.0, 0.0]), config, np.random.default_rng(0))
    )
    assert {expansion.parent for expansion in world.asked} == {"start"}
    assert {expansion.keep_as for expansion in world.asked} == {None}
    assert max(len(expansion.actions[0]) for expansion in world.asked) == 2
    assert len({expansion.seed for expansion in world.asked}) == len(world.asked)
    tree = result.tree
    assert tree.check_valid() == (True, "")
    assert not (tree.status == TERMINAL).any()
    assert tree.status[tree.child[0, 1]] == EXPANDED
    # Half of those that set out over action 1 came through.
    through = tree.node_visits[tree.child[0, 1]] / result.visits[1]
    assert through == pytest.approx(0.5, abs=0.1)
    assert result.q[1] < result.q[0]
    assert result.num_simulations == 600


def test_an_end_that_was_luck_opens_up() -> None:
    """Luck drawn anew at an end can go on: what was a terminal leaf becomes a node, and its edge keeps its mean."""
    world = Wobbly()
    config = SearchConfig(num_simulations=40, rng="resample", discount=1.0, c1=20.0)
    opened = 0
    for seed in range(12):
        world.asked.clear()
        root = Root(state="start", obs=[np.zeros(1)])
        [result] = asyncio.run(search([root], world, Fixed([0.0, 0.0]), config, np.random.default_rng(seed)))
        assert result.tree.check_valid() == (True, "")
        child = result.tree.child[0, 1]
        if result.tree.status[child] == EXPANDED and result.tree.node_visits[child] < result.visits[1]:
            opened += 1
    assert opened > 0


class Forgetful(ToySimulator):
    """Keeps no state of odd depth: the way there begins further up."""

    def _simulate(self, asked: Expansion) -> Outcome:
        outcome = super()._simulate(asked)
        if outcome.kept and len(self.states[asked.keep_as]) % 2:
            del self.states[asked.keep_as]
            return outcome._replace(kept=False)
        return outcome


@pytest.mark.parametrize("players", [1, 2])
@pytest.mark.parametrize("waves", [1, 4])
def test_states_that_were_not_kept_are_reached_from_above(players: int, waves: int) -> None:
    """Ways of two steps in the place of one: the tree is the one that a simulator with room gives, bit for bit."""
    toy = Toy(12, 3, ends=0.1, players=players)
    config = SearchConfig(num_simulations=150, waves=waves, rng="frozen")
    trees = []
    for simulator in (ToySimulator(toy), Forgetful(toy)):
        [result] = asyncio.run(search([toy.root()], simulator, toy.evaluate, config, np.random.default_rng(0)))
        trees.append(result.tree)
        assert not simulator.states
    assert {len(e.actions[0]) for wave in simulator.waves for e in wave} == {1, 2}
    for name in ("value", "q", "edge_visits", "child", "reward", "discount", "status"):
        np.testing.assert_array_equal(getattr(trees[0], name), getattr(trees[1], name))


def test_the_other_sides_good_is_our_bad() -> None:
    """Two players: a discount of -γ where the turn changes, γ where it does not, 0 at the end."""
    toy = Toy(31, 3, players=2, again=0.4, ends=0.2, cuts=0.0, illegal=0.0)
    config = SearchConfig(num_simulations=200, discount=0.5, rng="frozen")
    [result] = asyncio.run(search([toy.root()], ToySimulator(toy), toy.evaluate, config, np.random.default_rng(0)))
    tree = result.tree
    seen = set()
    for node, action in np.argwhere(tree.child > 0).tolist():
        path = (*tree.path(node), action)
        same = toy.to_play(path) == toy.to_play(path[:-1])
        ended = bool(tree.status[tree.child[node, action]] == TERMINAL)
        expected = 0.0 if ended else 0.5 if same else -0.5
        assert tree.discount[node, action] == expected
        seen.add(expected)
    assert seen == {0.0, 0.5, -0.5}
