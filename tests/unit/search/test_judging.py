"""What leaves are worth, and what is never asked about."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from asyncrl.errors import ConfigError
from asyncrl.records import Array
from asyncrl.search import Proposal, Root, SearchConfig, search
from asyncrl.search.judging import Judge, Leaf, together
from asyncrl.search.tree import TERMINAL, TRUNCATED
from tests.unit.search.toys import ONE_STATE, Bandit, Fixed, Toy, ToySimulator


def test_ends_of_episodes_are_never_evaluated() -> None:
    """A network that thinks highly of everything, asked about ends: it is not, and its opinion is in no number."""
    bandit, evaluate = Bandit([1.0, -1.0]), Fixed([0.0, 0.0], 1e9)
    config = SearchConfig(num_simulations=20)
    [result] = asyncio.run(search([ONE_STATE], bandit, evaluate, config, np.random.default_rng(0)))
    assert evaluate.num_asked == 1  # the root
    assert result.q.tolist() == [1.0, -1.0]


@pytest.mark.parametrize("rng", ["frozen", "resample", "open_loop"])
def test_truncated_leaves_count_with_their_value_and_end_there(rng: Any) -> None:
    """Every step is cut off: leaves are worth reward and discounted value, and nothing is searched below them."""
    toy = Toy(1, 3, ends=0.0, cuts=1.0, illegal=0.0)
    config = SearchConfig(num_simulations=30, discount=0.5, rng=rng)
    simulator = ToySimulator(toy)
    [result] = asyncio.run(search([toy.root()], simulator, toy.evaluate, config, np.random.default_rng(0)))
    assert result.tree.depth() <= 1
    for action in np.flatnonzero(result.visits).tolist():
        step = toy.step((), action)
        assert result.q[action] == pytest.approx(step.reward + 0.5 * toy.value(toy.token(step.path)))
    assert not simulator.states
    assert all(expansion.parent == ("root", ()) for wave in simulator.waves for expansion in wave)


def test_ends_know_what_they_are() -> None:
    """Terminated leaves are worth 0 with a discount of 0, truncated ones their value with a discount of γ."""
    toy = Toy(6, 4, ends=0.3, cuts=0.5, illegal=0.0)
    config = SearchConfig(num_simulations=60, discount=0.5, rng="frozen")
    [result] = asyncio.run(search([toy.root()], ToySimulator(toy), toy.evaluate, config, np.random.default_rng(0)))
    tree = result.tree
    kinds = {int(status) for status in tree.status}
    assert {TERMINAL, TRUNCATED} <= kinds
    for node in np.flatnonzero((tree.status == TERMINAL) | (tree.status == TRUNCATED)).tolist():
        discount = tree.discount[tree.parent[node], tree.parent_action[node]]
        token = toy.token(tuple(tree.path(node)))
        wanted = (0.0, 0.0) if tree.status[node] == TERMINAL else (0.5, toy.value(token))
        assert (discount, tree.value[node]) == wanted


def test_leaves_can_be_worth_nothing() -> None:
    """leaf="zero": priors from the network, values from nobody."""
    toy = Toy(6, 4, ends=0.0)
    config = SearchConfig(num_simulations=40, leaf="zero", rng="frozen")
    [result] = asyncio.run(search([toy.root()], ToySimulator(toy), toy.evaluate, config, np.random.default_rng(0)))
    assert not result.tree.raw_value.any()
    assert len(set(result.tree.prior[0].tolist())) > 1


def test_rollouts_are_worth_what_they_return() -> None:
    """leaf="rollout": the simulator's number, the root's from a rollout without a step, and no network at all."""
    toy = Toy(6, 4, ends=0.0, cuts=0.2)
    simulator = ToySimulator(toy)
    config = SearchConfig(num_simulations=40, leaf="rollout", rollout_steps=17, discount=0.7, rng="frozen")
    [result] = asyncio.run(search([toy.root()], simulator, None, config, np.random.default_rng(0)))
    asked = [expansion for wave in simulator.waves for expansion in wave]
    assert asked[0].actions == ()
    assert {e.rollout.steps for e in asked if e.rollout} == {17}
    assert {e.rollout.discount for e in asked if e.rollout} == {0.7}
    assert len({e.rollout.seed for e in asked if e.rollout}) == len(asked)
    assert result.tree.raw_value[0] == simulator._simulate(asked[0]).rollout_return
    assert (result.tree.raw_value[result.tree.status == TRUNCATED] == 0).all()


async def test_masks_are_told_only_where_there_are_any() -> None:
    """The evaluator gets None, or every row's mask; players likewise."""
    seen: list[tuple[Any, Any]] = []

    async def evaluate(obs: Sequence[Array], mask: Array | None, to_play: Array | None) -> tuple[Array, Array]:
        seen.append((mask, to_play))
        return np.zeros((len(obs[0]), 2)), np.zeros(len(obs[0]))

    judge = Judge(evaluate, SearchConfig())
    leaf = Leaf([np.zeros(3)], None, None, 1)
    judged = await judge.judge([leaf, leaf])
    assert seen.pop() == (None, None)
    assert judged.mask.tolist() == [[True, True]] * 2
    await judge.judge([leaf._replace(to_play=1), leaf._replace(mask=np.array([True, False]), to_play=0)])
    mask, to_play = seen.pop()
    assert mask.tolist() == [[True, True], [True, False]]
    assert to_play.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("logits", "value"),
    [
        (np.zeros((2, 4)), np.zeros(2)),
        (np.zeros((1, 3)), np.zeros(2)),
        (np.zeros((2, 3)), np.zeros((2, 1))),
        (np.zeros((2, 3)), np.array([0.0, np.nan])),
        (np.zeros((2, 3)), np.array([0.0, np.inf])),
    ],
)
async def test_evaluators_are_checked(logits: Array, value: Array) -> None:
    """Shapes that do not fit the states and their actions, and values that are no numbers."""

    async def evaluate(obs: Sequence[Array], mask: Array | None, to_play: Array | None) -> tuple[Array, Array]:
        return logits, value

    leaf = Leaf([np.zeros(3)], np.ones(3, np.bool_), None, 1)
    with pytest.raises(ConfigError, match="evaluator"):
        await Judge(evaluate, SearchConfig()).judge([leaf, leaf])


async def test_somebody_has_to_say_how_many_actions_there_are() -> None:
    """No evaluator and no mask: the error names the way out."""
    config = SearchConfig(leaf="zero")
    with pytest.raises(ConfigError, match="give the roots a mask"):
        await search([Root(state=0)], Bandit([0.0]), None, config, np.random.default_rng(0))


@pytest.mark.parametrize("settings", [{"leaf": "evaluate"}, {"leaf": "zero", "num_sampled": 3}])
def test_what_needs_an_evaluator_says_so(settings: dict[str, Any]) -> None:
    """Values or proposals of nobody."""
    with pytest.raises(ConfigError, match="without an evaluator"):
        Judge(None, SearchConfig(**settings))


async def test_proposals_are_the_actions_of_their_state() -> None:
    """K actions a state by its key: the same again for the same key, others for other nodes; steps take those."""
    taken: list[list[float]] = []

    class Line(ToySimulator):
        async def simulate(self, wave: Any) -> Any:
            taken.extend(expansion.actions[0].tolist() for expansion in wave)
            asked = [e._replace(actions=[np.zeros(len(e.actions[0]), np.int64)]) for e in wave]
            return await super().simulate(asked)

    async def propose(obs: Sequence[Array], mask: Array | None, keys: Array, num_sampled: int) -> Proposal:
        draws = [np.random.default_rng(key).uniform(-1, 1, num_sampled) for key in keys.tolist()]
        return Proposal([np.array(draws)], np.zeros((len(keys), num_sampled)), np.zeros(len(keys)))

    toy = Toy(1, 1, ends=0.0, cuts=0.0, illegal=0.0, depth=99)
    config = SearchConfig(num_simulations=12, num_sampled=4)
    found = []
    for _ in range(2):
        taken.clear()
        [result] = await search([toy.root()], Line(toy), propose, config, np.random.default_rng(5))
        found.append((result.proposed[0].tolist(), list(taken)))
        assert result.chosen[0] == result.proposed[0][result.action]
        used = result.tree.status > 0
        assert len(np.unique(result.tree.actions[0][used])) == 4 * used.sum()
        assert {action for [action] in taken} <= set(result.tree.actions[0].ravel().tolist())
    assert found[0] == found[1]
    np.testing.assert_allclose(result.tree.prior[0], 0.25)


async def test_proposals_know_the_masks_of_their_states() -> None:
    """One row for each state, of all choices where it has no mask; None where no state has one."""
    seen: list[Any] = []

    async def propose(obs: Sequence[Array], mask: Array | None, keys: Array, num_sampled: int) -> Proposal:
        seen.append(None if mask is None else mask.tolist())
        return Proposal([np.zeros((len(keys), 2))], np.zeros((len(keys), 2)), np.zeros(len(keys)))

    judge = Judge(propose, SearchConfig(num_sampled=2))
    leaf = Leaf([np.zeros(1)], None, None, 1)
    judged = await judge.judge([leaf, leaf._replace(mask=np.array([True, False, True]))])
    await judge.judge([leaf, leaf])
    assert seen == [[[True, True, True], [True, False, True]], None]
    assert judged.mask.tolist() == [[True, True]] * 2  # of what was proposed everything is allowed


async def test_proposals_are_checked() -> None:
    """Too few actions for what was asked."""

    async def propose(obs: Sequence[Array], mask: Array | None, keys: Array, num_sampled: int) -> Proposal:
        return Proposal([np.zeros((len(keys), 2))], np.zeros((len(keys), 2)), np.zeros(len(keys)))

    with pytest.raises(ConfigError, match="3 actions for each of 1 states"):
        await Judge(propose, SearchConfig(num_sampled=3)).judge([Leaf([np.zeros(1)], None, None, 1)])


@pytest.mark.parametrize(
    ("rows", "copies"),
    [
        ([0, 1, 2, 3], False),
        ([0, 1, 2], True),
        ([1, 0, 2, 3], True),
        ([0, 1, 1, 3], True),
        ([3, 2, 1, 0], True),
    ],
)
def test_rows_of_one_array_are_stacked_without_a_copy(rows: list[int], copies: bool) -> None:
    """All of its rows in their order; anything else is copied."""
    whole = np.frombuffer(bytearray(range(24)), np.uint8).reshape(4, 2, 3)
    found = together([whole[row] for row in rows])
    assert found.tobytes() == np.stack([whole[row] for row in rows]).tobytes()
    assert found.shape == (len(rows), 2, 3)
    assert np.shares_memory(found, whole) != copies


def test_other_views_of_one_array_are_copied() -> None:
    """Of another dtype, of columns, of pieces with another shape, or of nobody else's memory."""
    whole = np.arange(16, dtype=np.int64).reshape(4, 4)
    views = [
        [whole[row].view(np.float64) for row in range(4)],
        [whole[:, column] for column in range(4)],
        [whole[row].reshape(2, 2).T for row in range(4)],
        [whole[row].copy() for row in range(4)],
        [whole[0], whole[1], whole[2], np.arange(4)],
    ]
    for rows in views:
        found = together(rows)
        assert found.tolist() == np.stack(rows).tolist()
        assert found.dtype == rows[0].dtype
        assert not np.shares_memory(found, whole)
