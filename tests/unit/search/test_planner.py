"""The search as a whole: against its slow twin, against itself in other company, and however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.errors import ConfigError
from asyncrl.records import Array
from asyncrl.search import Expansion, Outcome, Root, SearchConfig, SearchResult, search
from asyncrl.search.planner import Planner
from tests.unit.search.toys import ONE_STATE, Bandit, Fixed, Toy, ToySimulator
from tests.unit.search.twin import Twin, assert_same

toys = st.builds(
    Toy,
    st.integers(0, 10_000),
    st.integers(2, 6),
    ends=st.sampled_from([0.0, 0.2, 0.5]),
    cuts=st.sampled_from([0.0, 0.3]),
    illegal=st.sampled_from([0.0, 0.4]),
    players=st.sampled_from([1, 2]),
)
configs = st.builds(
    SearchConfig,
    algorithm=st.sampled_from(["puct", "gumbel"]),
    num_simulations=st.integers(1, 60),
    discount=st.sampled_from([1.0, 0.9]),
    leaf=st.sampled_from(["evaluate", "zero"]),
    use_mixed_value=st.booleans(),
    max_considered=st.sampled_from([2, 3, 16]),
    value_scale=st.sampled_from([0.1, 1.0]),
    c1=st.sampled_from([1.25, 4.0]),
    rng=st.just("frozen"),
)


def run(
    toy: Toy, config: SearchConfig, roots: Sequence[Root] | None = None, seed: int = 0
) -> tuple[list[SearchResult], ToySimulator]:
    """A whole search, after which nothing is held."""
    simulator = ToySimulator(toy)
    roots = [toy.root()] if roots is None else roots
    results = asyncio.run(search(roots, simulator, toy.evaluate, config, np.random.default_rng(seed)))
    assert not simulator.states
    return results, simulator


def assert_equal(one: SearchResult, other: SearchResult) -> None:
    """Everything, bit for bit."""
    assert one.action == other.action
    assert one.root_value == other.root_value
    for name in ("visits", "action_weights", "q", "behavior"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for name in ("status", "value", "node_visits", "child", "q", "edge_visits", "edge_started", "prior", "reward"):
        np.testing.assert_array_equal(getattr(one.tree, name), getattr(other.tree, name))


@settings(max_examples=150)
@given(toys, configs, st.integers(0, 99))
def test_the_search_is_that_of_its_slow_twin(toy: Toy, config: SearchConfig, seed: int) -> None:
    """PUCT and Gumbel, one and two players, masks, ends and truncations: every number of the tree is the twin's."""
    [result], _simulator = run(toy, config, seed=seed)
    first = int(np.random.default_rng(seed).integers(1 << 63))
    noise = np.random.default_rng(first).gumbel(size=toy.num_actions).tolist() if config.algorithm == "gumbel" else None
    twin = Twin(toy, config, noise)
    assert_same(result.tree, twin.run())
    assert result.tree.check_valid() == (True, "")
    if config.algorithm == "gumbel":
        np.testing.assert_allclose(result.action_weights, twin.improved(twin.root), rtol=1e-9)


@settings(max_examples=80)
@given(
    st.integers(0, 10_000),
    st.integers(2, 8),
    st.sampled_from([0.0, 0.4]),
    configs,
    st.integers(1, 16),
)
def test_a_phase_goes_down_at_once_as_one_after_the_other(
    seed: int, num_actions: int, illegal: float, config: SearchConfig, waves: int
) -> None:
    """Gumbel: every number of the tree is that of a twin that decides on a phase and makes one simulation of it at a
    time. (Without ends: those that are known are settled before what is in flight.)"""
    toy = Toy(seed, num_actions, ends=0.0, cuts=0.0, illegal=illegal, depth=99)
    config = replace(config, algorithm="gumbel", waves=waves)
    [result], _simulator = run(toy, config, seed=seed)
    first = int(np.random.default_rng(seed).integers(1 << 63))
    twin = Twin(toy, config, np.random.default_rng(first).gumbel(size=num_actions).tolist())
    assert_same(result.tree, twin.run_by_phases(waves))


@settings(max_examples=60)
@given(
    st.lists(toys, min_size=2, max_size=2),
    configs,
    st.integers(1, 9),
    st.integers(1, 4),
    st.sampled_from(["frozen", "resample", "open_loop"]),
)
def test_together_as_alone(pair: list[Toy], config: SearchConfig, waves: int, groups: int, rng: Any) -> None:
    """Roots of one search, in groups or not, get what the same searches give one after the other."""
    toy = pair[0]
    config = replace(config, waves=waves, rng=rng, noise_fraction=0.25, temperature=1.0)
    legal = [a for a, allowed in enumerate(toy.mask(())) if allowed]
    roots = [toy.root()] + [
        toy.root((a,)) for a in legal if not (step := toy.step((), a)).terminated and not step.truncated
    ]
    alone_rng = np.random.default_rng(3)
    alone = [asyncio.run(search([root], ToySimulator(toy), toy.evaluate, config, alone_rng))[0] for root in roots]
    together, _simulator = run(toy, replace(config, groups=groups), roots, seed=3)
    for one, other in zip(alone, together, strict=True):
        assert_equal(one, other)


@settings(max_examples=80)
@given(toys, configs, st.integers(2, 20), st.sampled_from(["frozen", "resample", "open_loop"]))
def test_waves_spend_the_same_budget(toy: Toy, config: SearchConfig, waves: int, rng: Any) -> None:
    """However many are in flight at once: every simulation comes back, and the tree is whole."""
    [result], simulator = run(toy, replace(config, waves=waves, rng=rng))
    assert result.num_simulations == config.num_simulations
    assert result.tree.check_valid() == (True, "")
    assert not result.tree.in_flight.any()
    assert max((len(wave) for wave in simulator.waves), default=0) <= waves


def test_waves_need_fewer_rounds() -> None:
    """A halving phase of Gumbel search is one round: 50 simulations of 16 actions in 12 rounds, of 16 to 2 each."""
    toy = Toy(3, 16, ends=0.0, cuts=0.0, illegal=0.0, depth=99)
    _results, simulator = run(toy, SearchConfig(algorithm="gumbel", num_simulations=50, waves=16, rng="frozen"))
    assert [len(wave) for wave in simulator.waves] == [16, 8, 4, 4, 4, *[2] * 7]


# ---------------------------------------------------------------------------------------------------- golden numbers

LOGITS, REWARDS = [0.0, -1.0, 2.0, 3.0], [20.0, 3.0, -1.0, 10.0]
PUBLISHED = SearchConfig(
    algorithm="gumbel", num_simulations=17, value_scale=0.05, maxvisit_init=60, gumbel_scale=0.0, discount=0.0
)


@pytest.mark.parametrize("rng", ["frozen", "resample", "open_loop"])
@pytest.mark.parametrize(
    ("mask", "action", "visits"),
    [(None, 3, [6, 2, 2, 7]), ([False, True, True, False], 1, [0, 9, 8, 0])],
)
async def test_the_published_bandit(rng: Any, mask: list[bool] | None, action: int, visits: list[int]) -> None:
    """Known rewards: published visits and action, and weights that follow from the closed form."""
    root = replace(ONE_STATE, mask=None if mask is None else np.array(mask))
    evaluate = Fixed(LOGITS, -5.0)
    config = replace(PUBLISHED, rng=rng)
    [result] = await search([root], Bandit(REWARDS), evaluate, config, np.random.default_rng(0))
    assert (result.action, result.visits.tolist()) == (action, visits)
    legal = np.array(mask or [True] * 4)
    logits = np.where(legal, LOGITS, -np.inf)
    prior = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    tried = np.array(visits) > 0
    mixed = (-5 + 17 * (prior * REWARDS)[tried].sum() / prior[tried].sum()) / 18
    completed = np.where(tried, REWARDS, mixed)
    bonus = (60 + max(visits)) * 0.05 * (completed - completed.min()) / (completed.max() - completed.min())
    expected = np.exp(logits + bonus) / np.exp(logits + bonus).sum()
    np.testing.assert_allclose(result.action_weights, expected, rtol=1e-12)
    assert (result.action_weights[~legal] == 0).all()


# ---------------------------------------------------------------------------------------------------- how it ends


@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
@pytest.mark.parametrize("waves", [1, 5])
async def test_failed_simulations_leave_nothing(algorithm: Any, waves: int) -> None:
    """A tenth of the answers is lost: what came back and what failed is the budget, and nothing is in flight."""
    toy = Toy(5, 4, ends=0.0, cuts=0.0, illegal=0.0, depth=99)
    rng = np.random.default_rng(1)
    simulator = ToySimulator(toy, lambda _expansion: "deadline" if rng.random() < 0.1 else "")
    config = SearchConfig(algorithm=algorithm, num_simulations=200, waves=waves, rng="frozen")
    [result] = await search([toy.root()], simulator, toy.evaluate, config, np.random.default_rng(0))
    assert result.failures.keys() == {"deadline"}
    assert result.num_simulations + result.failures.total() == 200
    assert 5 < result.failures.total() < 40
    assert not result.tree.in_flight.any()
    assert result.tree.check_valid() == (True, "")
    assert not simulator.states


@pytest.mark.parametrize("algorithm", ["puct", "gumbel", "rollouts"])
async def test_an_action_that_always_fails_does_not_eat_the_budget(algorithm: Any) -> None:
    """What fails gets less tempting, as if it had been visited: the others are searched."""
    toy = Toy(5, 4, ends=0.0, illegal=0.0, depth=99)
    simulator = ToySimulator(toy, lambda e: "env_fault" if e.actions and e.actions[0][0] == 1 else "")
    leaf: Any = "rollout" if algorithm == "rollouts" else "evaluate"
    config = SearchConfig(algorithm=algorithm, num_simulations=100, rng="open_loop", leaf=leaf)
    [result] = await search([toy.root()], simulator, toy.evaluate, config, np.random.default_rng(0))
    assert result.visits[1] == 0
    assert np.isnan(result.q[1])
    assert result.action != 1
    assert result.visits.sum() >= 40


async def test_nothing_comes_back_at_all() -> None:
    """Every simulation fails: the search ends, and recommends the prior."""
    toy = Toy(5, 4, illegal=0.0)
    simulator = ToySimulator(toy, lambda _expansion: "lane_lost")
    [result] = await search(
        [toy.root()], simulator, toy.evaluate, SearchConfig(num_simulations=20), np.random.default_rng(0)
    )
    assert result.failures == {"lane_lost": 20}
    np.testing.assert_array_equal(result.action_weights, result.tree.prior[0])
    assert result.action == result.tree.prior[0].argmax()


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(rewards=[], obs=[np.zeros(1)]),
        Outcome(rewards=[1.0, 1.0], obs=[np.zeros(1)]),
        Outcome(rewards=[np.nan], obs=[np.zeros(1)]),
        Outcome(rewards=[0.0], obs=[np.zeros(1)], rollout_return=np.inf),
        Outcome(rewards=[0.0], obs=[np.zeros(1)], mask=np.zeros(4, np.bool_)),
        Outcome(rewards=[0.0], obs=[np.zeros(1)], mask=np.ones(3, np.bool_)),
    ],
)
async def test_outcomes_that_make_no_sense_fail(outcome: Outcome) -> None:
    """No steps, too many, numbers that are none, masks that allow nothing or do not fit: none reaches the tree."""

    class Broken(Bandit):
        async def simulate(self, wave: Sequence[Expansion]) -> list[Outcome]:
            return [outcome for _ in wave]

    config = SearchConfig(num_simulations=3)
    [result] = await search([ONE_STATE], Broken([0.0]), Fixed(LOGITS), config, np.random.default_rng(0))
    assert result.num_simulations == 0
    assert result.failures.total() == 3
    assert result.tree.check_valid() == (True, "")


class Interrupted(Exception):
    """On purpose."""


class Gate:
    """Lets a number of waits through; then, as told, blocks for ever or raises."""

    def __init__(self, opened: int, raises: bool) -> None:
        self.left, self.raises = opened, raises
        self.reached = asyncio.Event()

    def __call__(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.left -= 1
        if self.left >= 0:
            future.set_result(None)
        elif self.raises:
            future.set_exception(Interrupted())
        else:
            self.reached.set()
        return future


@pytest.mark.parametrize("waves", [1, 6])
@pytest.mark.parametrize("opened", [0, 1, 7])
@pytest.mark.parametrize("where", ["simulate", "evaluate"])
@pytest.mark.parametrize("how", ["cancel", "raise"])
async def test_nothing_is_left_behind_however_a_search_ends(waves: int, opened: int, where: str, how: str) -> None:
    """Cancelled or failing, in the simulator or in the evaluator: nothing in flight, no state held, the tree whole."""
    toy = Toy(8, 4, ends=0.0, cuts=0.0, depth=99)
    gate = Gate(opened, how == "raise")
    simulator = ToySimulator(toy)

    async def evaluate(obs: Sequence[Array], mask: Array | None, to_play: Array | None) -> tuple[Array, Array]:
        if where == "evaluate" and simulator.waves:  # the roots are let through
            await gate()
        return await toy.evaluate(obs, mask, to_play)

    if where == "simulate":
        simulator.wait = gate
    config = SearchConfig(num_simulations=500, waves=waves, keep_tree=True)
    planner = Planner([toy.root(), toy.root()], [1, 2], simulator, evaluate, config)
    if how == "raise":
        with pytest.raises(Interrupted):
            await planner.run()
    else:
        running = asyncio.ensure_future(planner.run())
        await gate.reached.wait()
        assert any(planner.forest.tree(row, False).in_flight.any() for row in range(2))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    for row in range(2):
        tree = planner.forest.tree(row, False)
        assert tree.check_valid() == (True, "")
        assert not tree.in_flight.any()
    assert not simulator.states
    names = [e.keep_as for wave in simulator.waves for e in wave]
    assert sorted(simulator.released) == sorted(name for name in names if name is not None)


@pytest.mark.parametrize("how", ["cancel", "raise"])
async def test_groups_end_together(how: str) -> None:
    """One group fails, or all are cancelled: the caller gets that very error, and no state is left."""
    toy = Toy(8, 4, ends=0.0, cuts=0.0, depth=99)
    gate = Gate(5, how == "raise")
    simulator = ToySimulator(toy, wait=gate)
    config = SearchConfig(num_simulations=500, groups=3)
    running = asyncio.ensure_future(search([toy.root()] * 4, simulator, toy.evaluate, config, np.random.default_rng(0)))
    if how == "cancel":
        await gate.reached.wait()
        running.cancel()
    with pytest.raises(Interrupted if how == "raise" else asyncio.CancelledError):
        await running
    assert not simulator.states


@pytest.mark.parametrize("how", ["cancel", "raise"])
async def test_trees_are_kept_of_all_groups_or_of_none(how: str) -> None:
    """A group has ended, with a tree to be kept, when the other fails or the search is cancelled: nothing is held."""
    toy = Toy(8, 4, ends=0.0, cuts=0.0, depth=99)
    config = SearchConfig(num_simulations=5, groups=2, keep_tree=True)
    first, second = toy.root(), toy.root((2,))
    under_way = asyncio.Event()
    held_before = 0

    class Slow(ToySimulator):
        """Simulates from the second root no sooner than the first one's search has ended."""

        async def simulate(self, wave: Sequence[Expansion]) -> list[Outcome]:
            nonlocal held_before
            if any(each.parent == second.state for each in wave):
                for _ in range(100):
                    await asyncio.sleep(0)
                held_before = len(self.states)
                under_way.set()
                if how == "raise":
                    raise Interrupted
                await asyncio.Event().wait()
            return await super().simulate(wave)

    simulator = Slow(toy)
    running = asyncio.ensure_future(search([first, second], simulator, toy.evaluate, config, np.random.default_rng(0)))
    await under_way.wait()
    if how == "cancel":
        running.cancel()
    with pytest.raises(Interrupted if how == "raise" else asyncio.CancelledError):
        await running
    assert held_before == 5
    assert not simulator.states


async def test_what_is_below_a_lost_state_is_reached_again() -> None:
    """Every state of a kept tree is lost: each fails one simulation, and then longer ways lead to where it was."""
    toy = Toy(8, 3, ends=0.0, cuts=0.0, depth=99)
    simulator = ToySimulator(toy)
    simulator.fault = lambda e: (
        "snapshot_gone" if isinstance(e.parent, int) and e.parent not in simulator.states else ""
    )
    config = SearchConfig(num_simulations=30, keep_tree=True)
    [first] = await search([toy.root()], simulator, toy.evaluate, config, np.random.default_rng(0))
    lost = set(simulator.states)
    assert len(lost) == 30
    simulator.states.clear()
    simulator.waves.clear()
    root = replace(toy.root(), tree=first.tree)
    [result] = await search(
        [root], simulator, toy.evaluate, replace(config, num_simulations=130), np.random.default_rng(0)
    )
    asked = [expansion for wave in simulator.waves for expansion in wave]
    failed = [expansion.parent for expansion in asked if expansion.parent in lost]
    assert len(failed) == len(set(failed)) == result.failures["snapshot_gone"] > 5
    assert result.num_simulations == 130 - len(failed)
    assert max(len(expansion.actions[0]) for expansion in asked) > 2
    assert result.tree.check_valid() == (True, "")
    assert not set(result.tree.states) & set(failed)
    assert set(result.tree.states) - lost == set(simulator.states)


async def test_a_deadline_returns_the_tree_so_far() -> None:
    """The simulator hangs in its eighth wave: what seven waves found is returned, and nothing is in flight."""
    toy = Toy(8, 4, ends=0.0, cuts=0.0, depth=99)
    simulator = ToySimulator(toy, wait=Gate(7, raises=False))
    config = SearchConfig(num_simulations=500, deadline_s=0.05, rng="frozen")
    [result] = await search([toy.root()], simulator, toy.evaluate, config, np.random.default_rng(0))
    assert result.num_simulations == 7
    assert result.tree.check_valid() == (True, "")
    assert not result.tree.in_flight.any()
    assert not simulator.states
    twin = Twin(toy, replace(config, num_simulations=7))
    assert_same(result.tree, twin.run())


async def test_a_deadline_in_the_past_still_gives_an_answer() -> None:
    """No time at all: the roots are judged, and the best of the prior is played."""
    toy = Toy(8, 4)
    config = SearchConfig(num_simulations=500, deadline_s=0.0)
    [result] = await search([toy.root()], ToySimulator(toy), toy.evaluate, config, np.random.default_rng(0))
    assert result.num_simulations == 0
    assert result.action == result.tree.prior[0].argmax()


async def test_other_peoples_timeouts_are_not_taken_for_the_deadline() -> None:
    """A TimeoutError of the simulator is an error, also where there is a deadline."""
    toy = Toy(8, 4)

    class Slow(ToySimulator):
        async def simulate(self, wave: Sequence[Expansion]) -> list[Outcome]:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        await search([toy.root()], Slow(toy), toy.evaluate, SearchConfig(deadline_s=60.0), np.random.default_rng(0))


async def test_the_loop_gets_its_turn_where_nothing_is_simulated() -> None:
    """A tree that has seen all of its world needs no simulator; others on the loop run all the same."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.ensure_future(count())
    config = SearchConfig(num_simulations=300, waves=4, rng="frozen")
    await search([ONE_STATE], Bandit(REWARDS), Fixed(LOGITS), config, np.random.default_rng(0))
    counting.cancel()
    assert turns > 300 / 4 - 5


async def test_no_simulations_is_the_policy() -> None:
    """n = 0: nothing is asked of the simulator, the prior is the target."""
    toy = Toy(8, 4, illegal=0.0)
    simulator = ToySimulator(toy)
    [result] = await search(
        [toy.root()], simulator, toy.evaluate, SearchConfig(num_simulations=0), np.random.default_rng(0)
    )
    assert not simulator.waves
    np.testing.assert_array_equal(result.action_weights, result.tree.prior[0])


async def test_gumbel_takes_no_tree() -> None:
    """Its plan is for a root without visits: going on with a tree is refused."""
    toy = Toy(8, 4)
    simulator = ToySimulator(toy)
    config = SearchConfig(num_simulations=5)
    [result] = await search([toy.root()], simulator, toy.evaluate, config, np.random.default_rng(0))
    root = replace(toy.root(), tree=result.tree)
    with pytest.raises(ConfigError, match="only PUCT"):
        await search([root], simulator, toy.evaluate, SearchConfig(algorithm="gumbel"), np.random.default_rng(0))
