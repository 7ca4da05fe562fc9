"""`Forest`: the trees of many roots in one block of arrays, and what happens to paths through them.

Every operation takes one path of each of several roots and works on all of them at once, or several of a root that have
nothing in common but the root; roots never touch each other (test_roots_side_by_side_are_roots_alone). Memory is taken
as nodes come into use.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from asyncrl.errors import ConfigError
from asyncrl.records import Array
from asyncrl.search import tree
from asyncrl.search.tree import NodeArrays, Tree


class Growth(NamedTuple):
    """What F new nodes are made of."""

    logits: Array  # f8 [F, A]
    mask: Array  # b1 [F, A]
    value: Array  # f8 [F]
    to_play: Array  # i4 [F]
    state: Array  # i8 [F]
    actions: list[Array]  # per action leaf [F, A, *shape]; [] where actions are enumerated


class Forest(NodeArrays):
    """R trees of up to N nodes. Node n of root r is row `r * N + n`; `parent` and `child` count within the tree."""

    def __init__(self, num_roots: int, num_nodes: int, num_actions: int) -> None:
        self.num_roots, self.num_nodes, self.num_actions = num_roots, num_nodes, num_actions
        self._allocate(num_roots * num_nodes, num_actions)
        self.num_used = np.ones(num_roots, np.int64)  # per root: nodes taken into use so far
        # Edges by one number, node row * A + action.
        self.flat_visits = self.edge_visits.reshape(-1)
        self.flat_started = self.edge_started.reshape(-1)
        self.flat_failed = self.edge_failed.reshape(-1)
        self.flat_q = self.q.reshape(-1)
        self.flat_reward = self.reward.reshape(-1)
        self.flat_discount = self.discount.reshape(-1)
        self.flat_child = self.child.reshape(-1)

    def base(self, rows: Array) -> Array:
        """i8 [r]: row of each root's node 0."""
        first: Array = rows * self.num_nodes
        return first

    def tree(self, row: int, certain: bool) -> Tree:
        """One root's tree, as a view."""
        first = row * self.num_nodes
        return Tree(self, slice(first, first + int(self.num_used[row])), certain)

    def adopt(self, row: int, earlier: Tree) -> None:
        """Go on with a tree of an earlier search."""
        if not self.actions and earlier.actions:
            self._make_actions(earlier.actions)
        self.paste(row * self.num_nodes, earlier)
        self.num_used[row] = len(earlier)

    def expand(self, at: Array, new: Growth) -> None:
        """The nodes in rows `at` are expanded, and have seen nothing but themselves."""
        self.status[at] = tree.EXPANDED
        self.node_visits[at] = self.node_started[at] = 1
        self.value[at] = self.raw_value[at] = new.value
        self.to_play[at] = new.to_play
        self.state[at] = new.state
        self.mask[at] = new.mask
        logits = np.where(new.mask, new.logits, -np.inf)
        self.logits[at] = logits
        self.prior[at] = softmax(logits)
        if new.actions and not self.actions:
            self._make_actions(new.actions)
        for mine, theirs in zip(self.actions, new.actions, strict=True):
            mine[at] = theirs

    def end(self, at: Array, status: Array, value: Array) -> None:
        """An episode ended in these nodes, for the first time or again; `status` u1 [f], `value` f8 [f]."""
        self.status[at] = status
        self.value[at] = self.raw_value[at] = value
        self.node_visits[at] += 1
        self.node_started[at] = self.node_visits[at]

    def _make_actions(self, like: list[Array]) -> None:
        self.actions = [np.zeros((len(self.status), *leaf.shape[1:]), leaf.dtype) for leaf in like]

    # ------------------------------------------------------------------------------------------------ paths

    def start(self, at: Array, action: Array) -> Array:
        """One more simulation leaves each node over this action; i4 [r]: where that leads."""
        edge = at * self.num_actions + action
        self.flat_started[edge] += 1
        self.node_started[at] += 1
        child: Array = self.flat_child[edge]
        return child

    def sprout(self, rows: Array, parent: Array, action: Array) -> Array:
        """i8 [r]: a new pending node at the end of each of these edges."""
        node: Array = self.num_used[rows]
        self.num_used[rows] += 1
        at = self.base(rows) + node
        self.status[at] = tree.PENDING
        self.parent[at] = parent
        self.parent_action[at] = action
        self.flat_child[(self.base(rows) + parent) * self.num_actions + action] = node
        return node

    def wither(self, rows: Array, nodes: Array) -> None:
        """Take leaves away; their places are not used again."""
        at = self.base(rows) + nodes
        self.flat_child[self.edge_above(rows, nodes)] = 0
        self.status[at] = tree.NEW
        self.state[at] = 0

    def lose(self, row: int, state: int) -> None:
        """The simulator has this state of a root's tree no more."""
        nodes = self.state[row * self.num_nodes : (row + 1) * self.num_nodes]
        nodes[nodes == state] = 0

    def edge_above(self, rows: Array, nodes: Array) -> Array:
        """i8 [r]: the edge that leads to each node."""
        base = self.base(rows)
        at = base + nodes
        edge: Array = (base + self.parent[at]) * self.num_actions + self.parent_action[at]
        return edge

    def back_up(self, rows: Array, leaves: Array, returns: Array, turn: Array | None = None) -> None:
        """A simulation came back to each of these leaves with `returns` f8 [f] from there on.

        Where a root has several of them, whose ways have nothing in common but the root, it sees them in the order of
        their `turn` i8 [f].
        """
        roots, node = rows, leaves
        if turn is not None:
            going, at_top = np.arange(len(rows)), np.zeros(len(rows))
        while len(rows):
            base = self.base(rows)
            at = base + node
            node = self.parent[at]
            above = base + node
            edge = above * self.num_actions + self.parent_action[at]
            returns = self.flat_reward[edge] + self.flat_discount[edge] * returns
            # By differences: what returns the same each time keeps its mean to the last bit.
            visits = self.flat_visits[edge] + 1
            self.flat_visits[edge] = visits
            mean = self.flat_q[edge]
            self.flat_q[edge] = mean + (returns - mean) / visits
            inside = node > 0
            whole = inside.all()
            if turn is None or whole:
                self._visit(above, returns)
            else:
                self._visit(above[inside], returns[inside])
                at_top[going[~inside]] = returns[~inside]
                going = going[inside]
            if not whole:
                rows, node, returns = rows[inside], node[inside], returns[inside]
        if turn is not None:
            for number in range(int(turn.max(initial=-1)) + 1):
                mine = turn == number
                self._visit(self.base(roots[mine]), at_top[mine])

    def _visit(self, at: Array, returns: Array) -> None:
        """A simulation came through each of these nodes."""
        visits = self.node_visits[at] + 1
        self.node_visits[at] = visits
        mean = self.value[at]
        self.value[at] = mean + (returns - mean) / visits

    def undo(self, rows: Array, leaves: Array) -> None:
        """The simulations on their way to these leaves were never started."""
        for edge, above in self._up(rows, leaves):
            self.flat_started[edge] -= 1
            self.node_started[above] -= 1

    def fail(self, rows: Array, leaves: Array) -> None:
        """The simulations on their way to these leaves failed: nothing is learned, and they are less tempting now."""
        for edge, _above in self._up(rows, leaves):
            self.flat_failed[edge] += 1

    def _up(self, rows: Array, node: Array) -> list[tuple[Array, Array]]:
        """Edges and the nodes above them, from the leaves to the roots."""
        found: list[tuple[Array, Array]] = []
        while len(rows):
            base = self.base(rows)
            at = base + node
            node = self.parent[at]
            found.append(((base + node) * self.num_actions + self.parent_action[at], base + node))
            inside = node > 0
            rows, node = rows[inside], node[inside]
        return found


def softmax(logits: Array) -> Array:
    """f8 [F, A]; ConfigError where a row has NaN, +inf, or nothing but -inf."""
    top = logits.max(1, keepdims=True)
    if not np.isfinite(top).all():
        raise ConfigError("the evaluator's logits are not finite, or a state has no legal action")
    weights: Array = np.exp(logits - top)
    weights /= weights.sum(1, keepdims=True)
    return weights
