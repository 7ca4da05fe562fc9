"""Going on with a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from asyncrl.search import SearchConfig, SearchResult, advance, release_tree, search
from asyncrl.search.tree import EXPANDED
from tests.unit.search.toys import Toy, ToySimulator

TOY = Toy(21, 3, ends=0.05, cuts=0.0, players=2, depth=30)
CONFIG = SearchConfig(num_simulations=60, rng="frozen", keep_tree=True)


async def plan(simulator: ToySimulator, path: tuple[int, ...], previous: SearchResult | None = None) -> SearchResult:
    root = TOY.root(path)
    if previous is not None:
        root = replace(root, tree=await advance(previous.tree, path[-1], root.obs, simulator))
    [result] = await search([root], simulator, TOY.evaluate, CONFIG, np.random.default_rng(0))
    return result


def played(result: SearchResult) -> int:
    """The best action whose subtree can be searched on."""
    children = result.tree.child[0]
    able = [a for a in range(3) if children[a] and result.tree.status[children[a]] == EXPANDED]
    return max(able, key=lambda a: int(result.visits[a]))


async def test_visits_of_the_earlier_search_count() -> None:
    """The second search ends with the same number of simulations as a first one, having asked for fewer."""
    simulator = ToySimulator(TOY)
    first = await plan(simulator, ())
    action = played(first)
    asked = len(simulator.waves)
    second = await plan(simulator, (action,), first)
    inherited = int(first.visits[action]) - 1
    assert inherited > 5
    assert second.num_simulations == 60
    assert second.tree.check_valid() == (True, "")
    assert sum(map(len, simulator.waves[asked:])) <= 60 - inherited


async def test_a_tree_goes_on_as_if_it_had_never_been_cut() -> None:
    """PUCT below a root that has all visits is PUCT of that root: the same tree as searched in one go, bit for bit."""
    toy = Toy(2, 1, ends=0.0, cuts=0.0, illegal=0.0, depth=99)  # one action: every simulation goes down the same way
    simulator = ToySimulator(toy)
    [first] = await search([toy.root()], simulator, toy.evaluate, CONFIG, np.random.default_rng(0))
    root = toy.root((0,))
    tree = await advance(first.tree, 0, root.obs, simulator)
    assert tree is not None
    [second] = await search([replace(root, tree=tree)], simulator, toy.evaluate, CONFIG, np.random.default_rng(0))
    [fresh] = await search([root], ToySimulator(toy), toy.evaluate, CONFIG, np.random.default_rng(0))
    np.testing.assert_array_equal(second.tree.value, fresh.tree.value)
    np.testing.assert_array_equal(second.tree.edge_visits, fresh.tree.edge_visits)
    await release_tree(second.tree, simulator)
    assert not simulator.states


async def test_advancing_releases_what_was_not_played() -> None:
    """Of the states only those below the action are kept, its own apart; at the end nothing is left."""
    simulator = ToySimulator(TOY)
    first = await plan(simulator, ())
    assert set(simulator.states) == set(first.tree.states)
    action = played(first)
    tree = await advance(first.tree, action, TOY.root((action,)).obs, simulator)
    assert tree is not None
    assert tree.check_valid() == (True, "")
    assert set(simulator.states) == set(tree.states)
    assert all(path[0] == action and len(path) > 1 for path in simulator.states.values())
    await release_tree(tree, simulator)
    assert not simulator.states


async def test_a_tree_goes_on_only_where_it_foresaw_what_came() -> None:
    """Another observation than the foreseen one: no tree, and every state is released."""
    simulator = ToySimulator(TOY)
    first = await plan(simulator, ())
    assert await advance(first.tree, played(first), [np.array(0)], simulator) is None
    assert not simulator.states


async def test_the_noise_of_two_searches_does_not_compound() -> None:
    """The prior of the new root is the network's, whatever noise the earlier search had."""
    simulator = ToySimulator(TOY)
    noisy = replace(CONFIG, noise_fraction=0.9)
    [first] = await search([TOY.root()], simulator, TOY.evaluate, noisy, np.random.default_rng(0))
    action = played(first)
    root = TOY.root((action,))
    tree = await advance(first.tree, action, root.obs, simulator)
    [second] = await search([replace(root, tree=tree)], simulator, TOY.evaluate, noisy, np.random.default_rng(0))
    [fresh] = await search([root], ToySimulator(TOY), TOY.evaluate, CONFIG, np.random.default_rng(0))
    np.testing.assert_array_equal(second.tree.prior[0], fresh.tree.prior[0])
    await release_tree(second.tree, simulator)


class Interrupted(Exception):
    """On purpose."""


async def test_a_failed_search_gives_back_the_tree_it_went_on_with() -> None:
    """States that an earlier search left are released too."""

    class Broken(ToySimulator):
        broken = False

        async def simulate(self, wave: Sequence[object]) -> list[object]:  # type: ignore[override]
            if self.broken:
                raise Interrupted
            return list(await super().simulate(wave))  # type: ignore[arg-type]

    simulator = Broken(TOY)
    first = await plan(simulator, ())
    simulator.broken = True
    with pytest.raises(Interrupted):
        await plan(simulator, (played(first),), first)
    assert not simulator.states


async def test_roots_with_and_without_trees_share_a_search() -> None:
    """One root goes on, the other begins: each as it would alone."""
    simulator = ToySimulator(TOY)
    first = await plan(simulator, ())
    action = played(first)
    root = TOY.root((action,))
    tree = await advance(first.tree, action, root.obs, simulator)
    both = await search(
        [TOY.root(), replace(root, tree=tree)], simulator, TOY.evaluate, CONFIG, np.random.default_rng(0)
    )
    np.testing.assert_array_equal(both[0].visits, first.visits)
    assert both[1].num_simulations == 60
    for result in both:
        assert result.tree.check_valid() == (True, "")
        await release_tree(result.tree, simulator)
    assert not simulator.states
