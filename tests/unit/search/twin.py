"""The search as one would write it down: nodes are objects, one simulation after the other, plain loops.

It knows the formulas and nothing of arrays, waves or forests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from asyncrl.search import SearchConfig, Tree
from asyncrl.search.halving import considered_visits
from asyncrl.search.tree import EXPANDED, TERMINAL, TRUNCATED
from tests.unit.search.toys import Path, Toy


@dataclass
class Node:
    path: Path
    status: int
    raw: float
    to_play: int | None
    mask: list[bool] = field(default_factory=list)
    logits: list[float] = field(default_factory=list)
    prior: list[float] = field(default_factory=list)
    value: float = 0.0
    n: int = 1
    visits: list[int] = field(default_factory=list)
    q: list[float] = field(default_factory=list)
    reward: dict[int, float] = field(default_factory=dict)
    disc: dict[int, float] = field(default_factory=dict)
    child: dict[int, Node] = field(default_factory=dict)

    @property
    def legal(self) -> list[int]:
        return [a for a, allowed in enumerate(self.mask) if allowed]


def softmax(logits: list[float], mask: list[bool]) -> list[float]:
    masked = np.array([x if allowed else -np.inf for x, allowed in zip(logits, mask, strict=True)])
    weights = np.exp(masked - masked.max())
    shares: list[float] = (weights / weights.sum()).tolist()
    return shares


class Twin:
    """`noise`: Gumbel noise of the root's actions."""

    def __init__(self, toy: Toy, config: SearchConfig, noise: list[float] | None = None) -> None:
        self.toy, self.config = toy, config
        self.noise = noise or [0.0] * toy.num_actions
        self.root = self.expanded(())

    def expanded(self, path: Path) -> Node:
        token = self.toy.token(path)
        raw = 0.0 if self.config.leaf == "zero" else self.toy.value(token)
        node = Node(path, EXPANDED, raw, self.toy.to_play(path), value=raw)
        node.mask, node.logits = self.toy.mask(path), self.toy.logits(token)
        node.prior = softmax(node.logits, node.mask)
        node.visits, node.q = [0] * self.toy.num_actions, [0.0] * self.toy.num_actions
        return node

    def run(self) -> Node:
        for _ in range(self.config.num_simulations):
            self.simulate()
        return self.root

    def run_by_phases(self, waves: int) -> Node:
        """Gumbel: where up to `waves` simulations of a phase go is decided before the first of them is made."""
        left = self.config.num_simulations
        plan = considered_visits(min(self.config.max_considered, len(self.root.legal)), left)
        while left:
            made = len(plan) - left
            same = sum(wanted == plan[made] for wanted in plan[made:])
            scores = self.scores(plan[made])
            first = sorted(scores, key=lambda a: (-scores[a], a))[: min(same, waves)]
            for action in first:
                self.simulate(action)
            left -= len(first)
        return self.root

    def simulate(self, first: int | None = None) -> None:
        way: list[tuple[Node, int]] = []
        node = self.root
        while node.status == EXPANDED:
            action = self.select(node) if way or first is None else first
            way.append((node, action))
            if action not in node.child:
                node.child[action] = self.new_leaf(node, action)
                node = node.child[action]
                break
            node = node.child[action]
            if node.status != EXPANDED:
                node.n += 1
        returned = node.raw
        for node, action in reversed(way):
            returned = node.reward[action] + node.disc[action] * returned
            node.visits[action] += 1
            node.q[action] += (returned - node.q[action]) / node.visits[action]
            node.n += 1
            node.value += (returned - node.value) / node.n

    def new_leaf(self, node: Node, action: int) -> Node:
        step = self.toy.step(node.path, action)
        node.reward[action] = step.reward
        same = self.toy.to_play(step.path) == node.to_play
        gamma = self.config.discount
        node.disc[action] = 0.0 if step.terminated else gamma if same else -gamma
        if step.terminated:
            return Node(step.path, TERMINAL, 0.0, None)
        if step.truncated:
            raw = 0.0 if self.config.leaf == "zero" else self.toy.value(self.toy.token(step.path))
            return Node(step.path, TRUNCATED, raw, None, value=raw)
        return self.expanded(step.path)

    # ------------------------------------------------------------------------------------------------ selection

    def select(self, node: Node) -> int:
        if self.config.algorithm == "puct":
            return first_best({a: self.puct(node, a) for a in node.legal})
        if node is self.root:
            num = min(self.config.max_considered, len(node.legal))
            return first_best(self.scores(considered_visits(num, self.config.num_simulations)[sum(node.visits)]))
        improved = self.improved(node)
        return first_best({a: improved[a] - node.visits[a] / node.n for a in node.legal})

    def scores(self, wanted: int) -> dict[int, float]:
        """Of the root's actions that have been tried so often."""
        root, bonus = self.root, self.bonus(self.root)
        return {a: self.noise[a] + root.logits[a] + bonus[a] for a in root.legal if root.visits[a] == wanted}

    def puct(self, node: Node, a: int) -> float:
        seen = [node.value] + [q for q, n in zip(node.q, node.visits, strict=True) if n]
        low, high = min(seen), max(seen)
        normal = (node.q[a] - low) / max(high - low, 1e-8) if node.visits[a] else 0.0
        c = self.config.c1 + math.log((node.n + self.config.c2 + 1) / self.config.c2)
        return normal + math.sqrt(node.n) * c * node.prior[a] / (1 + node.visits[a])

    def bonus(self, node: Node) -> list[float]:
        tried = [a for a, n in enumerate(node.visits) if n]
        estimate = node.raw
        if self.config.use_mixed_value and tried:
            total = sum(node.visits)
            mean = sum(node.prior[a] * node.q[a] for a in tried) / sum(node.prior[a] for a in tried)
            estimate = (node.raw + total * mean) / (1 + total)
        completed = [q if n else estimate for q, n in zip(node.q, node.visits, strict=True)]
        low, high = min(completed), max(completed)
        scale = (self.config.maxvisit_init + max(node.visits)) * self.config.value_scale
        return [scale * (x - low) / max(high - low, 1e-8) for x in completed]

    def improved(self, node: Node) -> list[float]:
        """Softmax of logits and bonus."""
        bonus = self.bonus(node)
        return softmax([x + b for x, b in zip(node.logits, bonus, strict=True)], node.mask)


def first_best(scores: dict[int, float]) -> int:
    """The lowest index among the best."""
    return max(scores, key=lambda a: (scores[a], -a))


def assert_same(tree: Tree, twin: Node, at: int = 0) -> None:
    """Every node, edge and number of the two trees, bit for bit."""
    assert int(tree.status[at]) == twin.status, twin.path
    assert int(tree.node_visits[at]) == twin.n, twin.path
    assert float(tree.value[at]) == twin.value, twin.path
    assert float(tree.raw_value[at]) == twin.raw, twin.path
    if twin.status != EXPANDED:
        assert not tree.child[at].any()
        return
    assert tree.mask[at].tolist() == twin.mask
    assert tree.prior[at].tolist() == twin.prior
    assert tree.edge_visits[at].tolist() == twin.visits, twin.path
    for a in range(tree.num_actions):
        child = int(tree.child[at, a])
        assert bool(child) == (a in twin.child)
        if child:
            assert float(tree.q[at, a]) == twin.q[a]
            assert float(tree.reward[at, a]) == twin.reward[a]
            assert float(tree.discount[at, a]) == twin.disc[a]
            assert_same(tree, twin.child[a], child)
