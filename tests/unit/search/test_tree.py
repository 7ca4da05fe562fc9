"""Trees as arrays: what `check_valid` sees, and subtrees."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.search import SearchConfig, Tree, search
from asyncrl.search.tree import EXPANDED, NEW, PENDING, TERMINAL
from tests.unit.search.toys import Toy, ToySimulator


def grown(seed: int = 2, num_simulations: int = 120, certain: bool = True, **toy: Any) -> Tree:
    world = Toy(seed, 4, **{"ends": 0.1, "cuts": 0.05, "illegal": 0.3, "depth": 30, **toy})
    config = SearchConfig(num_simulations=num_simulations, rng="frozen" if certain else "resample")
    [result] = asyncio.run(
        search([world.root()], ToySimulator(world), world.evaluate, config, np.random.default_rng(0))
    )
    return result.tree


def deep_edge(tree: Tree) -> tuple[int, int]:
    """A visited edge below the root that leads to an expanded node."""
    for node, action in np.argwhere(tree.child > 0).tolist():
        if node and tree.status[tree.child[node, action]] == EXPANDED:
            return node, action
    raise AssertionError("the tree is too small")


def _dangle(tree: Tree) -> None:
    tree.child[deep_edge(tree)] = 0


def _orphan(tree: Tree) -> None:
    node, action = deep_edge(tree)
    tree.parent[tree.child[node, action]] = 0


def _two_parents(tree: Tree) -> None:
    node, action = deep_edge(tree)
    tree.child[0, tree.child[0].argmin()] = tree.child[node, action]


def _children_of_an_end(tree: Tree) -> None:
    tree.status[deep_edge(tree)[0]] = TERMINAL


def _no_root(tree: Tree) -> None:
    tree.status[0] = NEW


def _old_child(tree: Tree) -> None:
    node, action = deep_edge(tree)
    child = int(tree.child[node, action])
    tree.parent[child] = len(tree) - 1
    tree.child[len(tree) - 1, action], tree.child[node, action] = child, 0
    tree.parent_action[child] = action
    tree.status[len(tree) - 1] = EXPANDED


def _visit_more(tree: Tree) -> None:
    tree.node_visits[deep_edge(tree)[0]] += 1


def _start_more(tree: Tree) -> None:
    tree.node_started[deep_edge(tree)[0]] += 1


def _fly(tree: Tree) -> None:
    node, action = deep_edge(tree)
    tree.edge_started[node, action] += 1
    tree.node_started[node] += 1


def _pend(tree: Tree) -> None:
    tree.status[np.flatnonzero(tree.status == TERMINAL)[0]] = PENDING


def _visit_the_end_again(tree: Tree) -> None:
    tree.node_visits[np.flatnonzero(tree.status == TERMINAL)[0]] += 1


def _shift_value(tree: Tree) -> None:
    tree.value[deep_edge(tree)[0]] += 0.01


def _shift_q(tree: Tree) -> None:
    node, action = deep_edge(tree)
    tree.q[node, action] += 0.01
    tree.value[node] += 0.01 * tree.edge_visits[node, action] / tree.node_visits[node]


def _no_number(tree: Tree) -> None:
    tree.q[deep_edge(tree)] = np.nan


def _worthy_end(tree: Tree) -> None:
    tree.value[np.flatnonzero(tree.status == TERMINAL)[0]] = 1.0


def _heavy_prior(tree: Tree) -> None:
    tree.prior[deep_edge(tree)[0]] *= 1.1


def _legalise(tree: Tree) -> None:
    tree.mask[deep_edge(tree)] = False


DAMAGE: dict[Callable[[Tree], None], str] = {
    _dangle: "nobody's child",
    _orphan: "does not know its parent",
    _two_parents: "nobody's child",
    _children_of_an_end: "not expanded",
    _no_root: "root",
    _old_child: "older than its parent",
    _visit_more: "visits of a node",
    _start_more: "started from a node",
    _fly: "in flight",
    _pend: "in flight",
    _visit_the_end_again: "in other ways",
    _shift_value: "not the mean",
    _shift_q: "not the reward",
    _no_number: "not finite",
    _worthy_end: "end of an episode",
    _heavy_prior: "sum to 1",
    _legalise: "sum to 1",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_kind_of_damage_is_named(damage: Callable[[Tree], None]) -> None:
    """A whole tree is valid; one number changed, and the reason says what kind of number."""
    tree = copy.deepcopy(grown())
    assert tree.check_valid() == (True, "")
    damage(tree)
    valid = tree.check_valid()
    assert not valid.ok
    assert DAMAGE[damage] in valid.reason


def test_an_illegal_visit_is_named() -> None:
    """An action that was tried and is not allowed, priors apart."""
    tree = copy.deepcopy(grown())
    node, action = deep_edge(tree)
    tree.mask[node, action] = False
    tree.prior[node] = np.where(tree.mask[node], 1.0 / tree.mask[node].sum(), 0.0)
    assert tree.check_valid().reason == "an action was tried that is not allowed"


@settings(max_examples=30)
@given(st.integers(0, 500), st.sampled_from([1, 2]), st.booleans())
def test_a_subtree_is_a_whole_tree(seed: int, players: int, certain: bool) -> None:
    """What hangs under an action is valid by itself and has the numbers it had there, in order of depth."""
    tree = grown(seed, 80, certain, players=players)
    for action in range(4):
        below, child = tree.subtree(action), int(tree.child[0, action])
        if not child or tree.status[child] != EXPANDED:
            assert below is None
            continue
        assert below is not None
        assert below.check_valid() == (True, "")
        assert (below.value[0], below.node_visits[0]) == (tree.value[child], tree.node_visits[child])
        paths = {tuple(below.path(n)): float(below.value[n]) for n in range(len(below))}
        expected = {
            tuple(path[1:]): float(tree.value[n])
            for n in np.flatnonzero(tree.status).tolist()
            if (path := tree.path(n))[:1] == [action]
        }
        assert paths == expected
        assert below.depth() == max(map(len, paths))


def test_a_subtree_is_a_copy() -> None:
    """Searching on with it leaves the old tree as it was."""
    tree = grown()
    action = int(tree.parent_action[deep_edge(tree)[0]]) if not tree.parent[deep_edge(tree)[0]] else 0
    below = tree.subtree(action)
    assert below is not None
    before = tree.value.copy()
    below.value[:] = 99.0
    np.testing.assert_array_equal(tree.value, before)


def test_states_of_a_tree() -> None:
    """Every expanded node but the root holds one."""
    tree = grown()
    assert len(tree.states) == len(set(tree.states)) == (tree.status == EXPANDED).sum() - 1
