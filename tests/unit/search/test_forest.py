"""Operations on paths through many trees at once."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrl.errors import ConfigError
from asyncrl.records import Array
from asyncrl.search.forest import Forest, Growth, softmax
from asyncrl.search.tree import EXPANDED, NEW, PENDING, TERMINAL

TREE_FIELDS = ("status", "node_visits", "node_started", "value", "edge_visits", "edge_started", "q", "child", "parent")


def growth(num: int, value: float = 0.0, num_actions: int = 2) -> Growth:
    return Growth(
        np.zeros((num, num_actions)),
        np.ones((num, num_actions), np.bool_),
        np.full(num, value),
        np.zeros(num, np.int32),
        np.zeros(num, np.int64),
        [],
    )


def make(num_roots: int) -> Forest:
    forest = Forest(num_roots, 8, 2)
    forest.expand(forest.base(np.arange(num_roots)), growth(num_roots))
    return forest


def step(forest: Forest, rows: Array, parents: Array, actions: Array) -> Array:
    """A simulation starts over each of these edges, to a new leaf."""
    assert not forest.start(forest.base(rows) + parents, actions).any()
    return forest.sprout(rows, parents, actions)


def land(forest: Forest, rows: Array, leaves: Array, value: float, reward: float, discount: float) -> None:
    edge = forest.edge_above(rows, leaves)
    forest.flat_reward[edge], forest.flat_discount[edge] = reward, discount
    forest.expand(forest.base(rows) + leaves, growth(len(rows), value))
    forest.back_up(rows, leaves, np.full(len(rows), value))


def grow(forest: Forest, rows: Array) -> None:
    """Three simulations: 0, then 0 0, then 1."""
    zero = np.zeros_like(rows)
    first = step(forest, rows, zero, zero)
    land(forest, rows, first, 2.0, 1.0, 0.5)
    forest.start(forest.base(rows), zero)
    second = step(forest, rows, first, zero)
    land(forest, rows, second, -4.0, 3.0, -0.5)
    third = step(forest, rows, zero, zero + 1)
    land(forest, rows, third, 1.0, 0.0, 1.0)


def test_returns_go_up_by_hand() -> None:
    """Three simulations worked out with pencil: means of edges and nodes, signs and discounts on the way."""
    forest = make(1)
    grow(forest, np.array([0]))
    tree = forest.tree(0, certain=True)
    # 0: 1 + .5 * 2 = 2. 0 0: 3 - .5 * -4 = 5 below, 1 + .5 * 5 = 3.5 at the root. 1: 0 + 1 = 1.
    assert tree.q[0].tolist() == [(2.0 + 3.5) / 2, 1.0]
    assert tree.q[1, 0] == 5.0
    assert tree.value[:4].tolist() == [(0.0 + 2.0 + 3.5 + 1.0) / 4, (2.0 + 5.0) / 2, -4.0, 1.0]
    assert tree.node_visits[:4].tolist() == [4, 2, 1, 1]
    assert tree.check_valid() == (True, "")


def test_roots_side_by_side_are_roots_alone() -> None:
    """The same paths in root 1 of three, in all three, and alone: equal numbers, and neighbours untouched."""
    alone, among, together = make(1), make(3), make(3)
    untouched = {name: getattr(among, name)[:8].copy() for name in TREE_FIELDS}
    grow(alone, np.array([0]))
    grow(among, np.array([1]))
    grow(together, np.arange(3))
    for name in TREE_FIELDS:
        expected = getattr(alone, name)
        np.testing.assert_array_equal(getattr(among, name)[8:16], expected)
        for row in range(3):
            np.testing.assert_array_equal(getattr(together, name)[8 * row : 8 * row + 8], expected)
        np.testing.assert_array_equal(getattr(among, name)[:8], untouched[name])
        np.testing.assert_array_equal(getattr(among, name)[16:], untouched[name])


def test_paths_of_different_lengths_go_up_together() -> None:
    """A short and a long path in one call: each stops at its own root."""
    forest = make(2)
    rows, zero = np.arange(2), np.zeros(2, np.int64)
    first = step(forest, rows, zero, zero)
    land(forest, rows, first, 0.0, 0.0, 1.0)
    forest.start(forest.base(rows[1:]), zero[1:])
    leaf_0 = step(forest, rows[:1], zero[:1], zero[:1] + 1)
    leaf_1 = step(forest, rows[1:], first[1:], zero[1:])
    leaves = np.concatenate([leaf_0, leaf_1])
    edge = forest.edge_above(rows, leaves)
    forest.flat_reward[edge], forest.flat_discount[edge] = 1.0, 1.0
    forest.expand(forest.base(rows) + leaves, growth(2, 6.0))
    forest.back_up(rows, leaves, np.array([6.0, 6.0]))
    assert forest.node_visits[forest.base(rows)].tolist() == [3, 3]
    assert forest.q[0].tolist() == [0.0, 7.0]
    assert forest.q[8, 0] == 3.5
    for row in rows.tolist():
        assert forest.tree(row, certain=True).check_valid() == (True, "")


def test_undone_paths_leave_nothing() -> None:
    """Started, sprouted, undone and withered: every number is what it was, the place apart."""
    forest = make(2)
    rows, zero = np.arange(2), np.zeros(2, np.int64)
    grow(forest, rows)
    before = {name: getattr(forest, name).copy() for name in TREE_FIELDS if name != "parent"}
    forest.start(forest.base(rows), zero)
    leaf = step(forest, rows, zero + 1, zero + 1)
    assert (forest.status[forest.base(rows) + leaf] == PENDING).all()
    assert forest.tree(0, certain=True).check_valid() == (True, "")
    forest.undo(rows, leaf)
    forest.wither(rows, leaf)
    for name, expected in before.items():
        np.testing.assert_array_equal(getattr(forest, name), expected)
    assert (forest.status[forest.base(rows) + leaf] == NEW).all()


def test_failed_paths_count_as_started() -> None:
    """A failed simulation is neither a visit nor in flight, on every edge of its path."""
    forest = make(1)
    rows = np.array([0])
    grow(forest, rows)
    forest.start(np.array([0]), np.array([0]))
    leaf = step(forest, rows, np.array([1]), np.array([1]))
    forest.fail(rows, leaf)
    forest.wither(rows, leaf)
    tree = forest.tree(0, certain=True)
    assert not tree.in_flight.any()
    assert tree.edge_failed[[0, 1]].tolist() == [[1, 0], [0, 1]]
    assert tree.edge_started[0].tolist() == [3, 1]
    assert tree.node_started[0] == 5
    assert tree.check_valid() == (True, "")


def test_an_end_is_counted_each_time() -> None:
    """The end of an episode, reached twice: two visits, the value it was given."""
    forest = make(1)
    rows = np.array([0])
    for visit in (1, 2):
        leaf = np.array([1])
        child = forest.start(np.array([0]), np.array([0]))
        if visit == 1:
            forest.sprout(rows, np.array([0]), np.array([0]))
        else:
            assert child[0] == 1
        forest.flat_reward[forest.edge_above(rows, leaf)] = 5.0
        forest.end(np.array([1]), np.array([TERMINAL]), np.zeros(1))
        forest.back_up(rows, leaf, np.zeros(1))
        assert forest.node_visits[1] == visit
    assert forest.q[0, 0] == 5.0
    assert forest.tree(0, certain=True).check_valid() == (True, "")


def test_what_returns_the_same_keeps_its_mean() -> None:
    """0.1 a thousand times is 0.1, to the last bit: equal actions stay equal."""
    forest = make(1)
    rows, leaf = np.array([0]), np.array([1])
    forest.start(np.array([0]), np.array([0]))
    forest.sprout(rows, np.array([0]), np.array([0]))
    forest.flat_reward[0] = 0.1
    for _ in range(1000):
        forest.back_up(rows, leaf, np.zeros(1))
    assert forest.q[0, 0] == 0.1


def test_a_tree_is_adopted_with_all_it_has() -> None:
    """Sampled actions come along; new nodes go behind the old ones."""
    old = Forest(1, 4, 2)
    actions = [np.arange(4, dtype=np.float32).reshape(1, 2, 2)]
    old.expand(np.array([0]), growth(1))
    grow(old, np.array([0]))
    old.expand(np.array([3]), growth(1, 1.0)._replace(actions=actions))
    forest = Forest(2, 9, 2)
    forest.adopt(1, old.tree(0, certain=True))
    np.testing.assert_array_equal(forest.actions[0][12], actions[0][0])
    assert forest.num_used.tolist() == [1, 4]
    leaf = step(forest, np.array([1]), np.array([3]), np.array([0]))
    assert leaf.tolist() == [4]
    np.testing.assert_array_equal(forest.value[9:13], old.value[:4])
    assert (forest.status[9:13] == EXPANDED).all()


@pytest.mark.parametrize("logits", [[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]])
def test_logits_that_mean_nothing_are_refused(logits: list[float]) -> None:
    """NaN, infinity, and a state without any legal action."""
    with pytest.raises(ConfigError, match="logits"):
        softmax(np.array([[0.0, 1.0], logits]))


def test_softmax_is_that_of_each_row() -> None:
    """Large logits do not overflow, -inf gets nothing."""
    shares = softmax(np.array([[1000.0, 1000.0, -np.inf], [0.0, np.log(3.0), 0.0]]))
    np.testing.assert_allclose(shares, [[0.5, 0.5, 0.0], [0.2, 0.6, 0.2]])
