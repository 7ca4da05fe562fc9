"""Search trees as arrays: rows are nodes, columns the actions that lead on from them.

Node 0 is the root. As it is nobody's child, a child of 0 says that an edge leads nowhere yet. q is the mean of what was
returned over an edge; on an edge whose step is certain that is its reward plus its discount times the child's value.

Invariants, all of them in `Tree.check_valid` (test_every_kind_of_damage_is_named): links go both ways and no node hangs
in the air; a node's visits are its own evaluation and those of its edges; its value is the mean of what it was worth
itself and of what its edges returned; simulations in flight are those of the pending nodes below; priors sum to 1 over
legal actions, and no other action was ever tried.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

import numpy as np

from asyncrl.records import Array

NEW: Final = 0  # not in use
PENDING: Final = 1  # a simulation is on its way here
EXPANDED: Final = 2
TERMINAL: Final = 3  # worth nothing, never evaluated
TRUNCATED: Final = 4  # worth what its observation is worth, and not followed further

_NODE_FIELDS: Final[dict[str, type[np.generic]]] = {
    "status": np.uint8,
    "node_visits": np.int32,
    "node_started": np.int32,
    "value": np.float64,
    "raw_value": np.float64,
    "to_play": np.int32,
    "parent": np.int32,
    "parent_action": np.int32,
    "state": np.int64,
    "obs_crc": np.uint32,
}
_EDGE_FIELDS: Final[dict[str, type[np.generic]]] = {
    "mask": np.bool_,
    "logits": np.float64,
    "prior": np.float64,
    "edge_visits": np.int32,
    "edge_started": np.int32,
    "edge_failed": np.int32,
    "q": np.float64,
    "reward": np.float64,
    "discount": np.float64,
    "child": np.int32,
}


class NodeArrays:
    """The fields of M nodes with A actions each."""

    status: Array  # u1 [M]
    node_visits: Array  # i4 [M]: 1 for the own evaluation, and 1 for each simulation that went on from here
    node_started: Array  # i4 [M]: the same with simulations in flight and failed ones
    value: Array  # f8 [M]: mean of raw_value and of all returns from here
    raw_value: Array  # f8 [M]: what the leaf was worth
    to_play: Array  # i4 [M]
    parent: Array  # i4 [M]
    parent_action: Array  # i4 [M]
    state: Array  # i8 [M]: the simulator's state; 0: none, or that of a root
    obs_crc: Array  # u4 [M]: of the observation's bytes, where trees are kept
    mask: Array  # b1 [M, A]: allowed actions
    logits: Array  # f8 [M, A]: -inf where not allowed
    prior: Array  # f8 [M, A]: softmax of the logits, without noise
    edge_visits: Array  # i4 [M, A]: simulations that came back
    edge_started: Array  # i4 [M, A]: the same with those in flight and failed ones
    edge_failed: Array  # i4 [M, A]
    q: Array  # f8 [M, A]: mean return, for the player to move; void where edge_visits is 0
    reward: Array  # f8 [M, A]: of the latest step that was drawn
    discount: Array  # f8 [M, A]: γ, -γ where the turn goes to the other player, 0 where the step ended the episode
    child: Array  # i4 [M, A]
    actions: list[Array]  # per action leaf [M, A, *shape], where actions are sampled

    def _allocate(self, num_rows: int, num_actions: int) -> None:
        for name, dtype in _NODE_FIELDS.items():
            setattr(self, name, np.zeros(num_rows, dtype))
        for name, dtype in _EDGE_FIELDS.items():
            setattr(self, name, np.zeros((num_rows, num_actions), dtype))
        self.actions = []

    def _view_of(self, other: NodeArrays, rows: slice | Array) -> None:
        for name in (*_NODE_FIELDS, *_EDGE_FIELDS):
            setattr(self, name, getattr(other, name)[rows])
        self.actions = [leaf[rows] for leaf in other.actions]

    def paste(self, first: int, other: NodeArrays) -> None:
        """Overwrite the nodes from `first` on with those of `other`."""
        rows = slice(first, first + len(other.status))
        for name in (*_NODE_FIELDS, *_EDGE_FIELDS):
            getattr(self, name)[rows] = getattr(other, name)
        for mine, theirs in zip(self.actions, other.actions, strict=True):
            mine[rows] = theirs


class Validity(NamedTuple):
    """`ok`, or in words what is wrong."""

    ok: bool
    reason: str


class Tree(NodeArrays):
    """The tree of one root. `certain`: steps have no luck, so that each edge leads to one state."""

    def __init__(self, nodes: NodeArrays, rows: slice | Array, certain: bool) -> None:
        self._view_of(nodes, rows)
        self.certain = certain

    def __len__(self) -> int:
        """Places for nodes; those whose status is NEW are not in use."""
        return len(self.status)

    @property
    def num_actions(self) -> int:
        return int(self.mask.shape[1])

    @property
    def in_flight(self) -> Array:
        """i4 [M, A]: simulations on their way over each edge."""
        flying: Array = self.edge_started - self.edge_visits - self.edge_failed
        return flying

    @property
    def states(self) -> list[int]:
        """The simulator's states that this tree holds."""
        return [int(state) for state in self.state[self.state > 0]]

    def path(self, node: int) -> list[int]:
        """Actions from the root."""
        found: list[int] = []
        while node:
            found.append(int(self.parent_action[node]))
            node = int(self.parent[node])
        return found[::-1]

    def depth(self) -> int:
        """Steps from the root to the deepest node."""
        return max(len(self.path(int(node))) for node in np.flatnonzero(self.status))

    def subtree(self, action: int) -> Self | None:
        """A copy of what hangs under an action of the root; None where no search can go on from there."""
        top = int(self.child[0, action])
        if not top or self.status[top] != EXPANDED:
            return None
        order = [top]
        for node in order:  # grows: breadth first
            order += [int(child) for child in self.child[node] if child]
        number = np.zeros(len(self), np.int32)
        number[order] = np.arange(len(order))
        cut = type(self)(self, np.array(order), self.certain)
        cut.child = np.where(cut.child > 0, number[cut.child], 0).astype(np.int32)
        cut.parent = number[cut.parent]
        cut.parent[0] = cut.parent_action[0] = 0
        return cut

    # ------------------------------------------------------------------------------------------------ checking

    def check_valid(self) -> Validity:
        """Whether the tree is whole. True between any two rounds of a search, with simulations in flight too."""
        for check in (self._wrong_links, self._wrong_counts, self._wrong_values, self._wrong_priors):
            reason = check()
            if reason:
                return Validity(False, reason)
        return Validity(True, "")

    def _wrong_links(self) -> str:
        used = np.flatnonzero(self.status)
        if self.status[0] != EXPANDED:
            return "the root is not expanded"
        nodes, actions = np.nonzero(self.child)
        children = self.child[nodes, actions]
        if not np.array_equal(np.sort(children), used[1:]):
            return "a node is nobody's child, or somebody's twice, or not in use"
        if not (np.array_equal(self.parent[children], nodes) and np.array_equal(self.parent_action[children], actions)):
            return "a child does not know its parent"
        if (self.parent[used[1:]] >= used[1:]).any():
            return "a node is older than its parent"
        if (self.status[nodes] != EXPANDED).any():
            return "a node that is not expanded has children"
        return ""

    def _wrong_counts(self) -> str:
        inner = self.status == EXPANDED
        if (self.edge_visits.sum(1) + 1 != self.node_visits)[inner].any():
            return "visits of a node are not one more than those of its edges"
        if ((self.edge_started - self.edge_visits).sum(1) + self.node_visits != self.node_started)[inner].any():
            return "what was started from a node is not what was started over its edges"
        expected = np.zeros_like(self.edge_started)
        for node in np.flatnonzero(self.status == PENDING).tolist():
            while node:
                up = int(self.parent[node])
                expected[up, int(self.parent_action[node])] += 1
                node = up
        if not np.array_equal(self.in_flight, expected):
            return "simulations in flight are not those of the pending nodes"
        settled = np.flatnonzero(np.isin(self.status, (EXPANDED, TERMINAL, TRUNCATED)))[1:]
        over = self.edge_visits[self.parent[settled], self.parent_action[settled]]
        if (self.node_visits[settled] > over).any() or (self.certain and (self.node_visits[settled] != over).any()):
            return "a node was visited in other ways than over its edge"
        return ""

    def _wrong_values(self) -> str:
        inner = np.flatnonzero(self.status == EXPANDED)
        visits, q = self.edge_visits[inner], np.where(self.edge_visits[inner] > 0, self.q[inner], 0.0)
        if not (np.isfinite(q).all() and np.isfinite(self.value[inner]).all()):
            return "a value is not finite"
        mean = (self.raw_value[inner] + (visits * q).sum(1)) / self.node_visits[inner]
        if not np.allclose(mean, self.value[inner], rtol=1e-6, atol=1e-6):
            return "a node's value is not the mean of what it and its edges returned"
        if (self.value[self.status == TERMINAL] != 0).any():
            return "the end of an episode is worth something"
        if self.certain:
            nodes, actions = np.nonzero((self.child > 0) & (self.edge_visits > 0))
            below = self.value[self.child[nodes, actions]]
            expected = self.reward[nodes, actions] + self.discount[nodes, actions] * below
            if not np.allclose(expected, self.q[nodes, actions], rtol=1e-6, atol=1e-6):
                return "q is not the reward and the discounted value of the child"
        return ""

    def _wrong_priors(self) -> str:
        inner = self.status == EXPANDED
        mask, prior = self.mask[inner], self.prior[inner]
        if not np.allclose(prior.sum(1), 1.0) or (prior[~mask] != 0).any():
            return "a prior does not sum to 1 over legal actions"
        if (self.edge_started[inner][~mask] != 0).any():
            return "an action was tried that is not allowed"
        return ""
