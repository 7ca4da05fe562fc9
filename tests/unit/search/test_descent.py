"""Waves: who is in flight together, and what closes them."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.search import SearchConfig, search
from asyncrl.search.descent import Descent
from asyncrl.search.forest import Forest, Growth
from asyncrl.search.selection import make_selection
from asyncrl.search.tree import NEW, PENDING
from tests.unit.search.toys import ONE_STATE, Bandit, Fixed, Toy, ToySimulator


def descent_over(num_roots: int, budget: int, prior: list[float], **settings: Any) -> tuple[Forest, Descent]:
    config = SearchConfig(num_simulations=budget, gumbel_scale=0.0, **settings)
    forest = Forest(num_roots, budget + 1, len(prior))
    logits = np.tile(np.log(prior), (num_roots, 1))
    zeros = np.zeros(num_roots, np.int64)
    mask = np.ones((num_roots, len(prior)), np.bool_)
    forest.expand(forest.base(np.arange(num_roots)), Growth(logits, mask, zeros * 0.0, zeros, zeros, []))
    selection = make_selection(forest, config, [np.random.default_rng(0)] * num_roots)
    return forest, Descent(forest, selection, config, np.full(num_roots, budget))


def test_a_collision_closes_the_wave() -> None:
    """Nearly all prior on one action: the second simulation would wait for the first one's leaf, and is undone."""
    forest, descent = descent_over(1, 8, [0.98, 0.01, 0.01], waves=8)
    wave = descent.wave()
    assert [turn.leaves.tolist() for turn in wave.turns] == [[1]]
    assert descent.left.tolist() == [7]
    assert forest.edge_started[0].tolist() == [1, 0, 0]
    assert forest.node_started[0] == 2
    assert forest.tree(0, certain=True).check_valid() == (True, "")


def test_simulations_in_flight_are_seen_by_the_next() -> None:
    """Equal priors: a wave spreads over all actions before anything comes back, and then is full of collisions."""
    forest, descent = descent_over(1, 20, [0.25] * 4, waves=20)
    wave = descent.wave()
    assert [turn.leaves.tolist() for turn in wave.turns] == [[1], [2], [3], [4]]
    assert forest.parent_action[1:5].tolist() == [0, 1, 2, 3]
    assert (forest.status[1:5] == PENDING).all()


def test_one_roots_collision_is_not_anothers() -> None:
    """Of two roots one collides at once; the other fills its wave."""
    forest, descent = descent_over(2, 4, [0.25] * 4, waves=4)
    forest.prior[0] = [0.97, 0.01, 0.01, 0.01]
    descent._selection._root_prior[0] = forest.prior[0]  # type: ignore[attr-defined]
    wave = descent.wave()
    assert [turn.rows.tolist() for turn in wave.turns] == [[0, 1], [1], [1], [1]]
    assert descent.left.tolist() == [3, 0]


def test_an_abandoned_wave_was_never_started() -> None:
    """The leaves are gone, nothing is in flight; the budget that it took stays taken."""
    forest, descent = descent_over(2, 4, [0.25] * 4, waves=3)
    descent.abandon(descent.wave())
    assert not forest.edge_started.any()
    assert not forest.child.any()
    assert (forest.status[forest.base(np.arange(2)) + 1] == NEW).all()
    assert (forest.node_started[forest.base(np.arange(2))] == 1).all()
    assert descent.left.tolist() == [1, 1]


def test_a_phase_of_gumbel_is_one_wave() -> None:
    """Waves never span two entries of the halving list that differ, however wide they may be."""
    _forest, descent = descent_over(1, 16, [0.25] * 4, waves=99, algorithm="gumbel")
    assert [turn.leaves.tolist() for turn in descent.wave().turns] == [[1], [2], [3], [4]]


async def test_rollouts_fill_their_waves() -> None:
    """Without a tree nobody waits: waves of any width, failures among them, come to what one after the other does."""
    toy = Toy(5, 4, illegal=0.0)
    found, widths = [], []
    for waves in (1, 6, 64):
        simulator = ToySimulator(toy, lambda e: "env_fault" if e.seed % 7 == 0 else "")
        config = SearchConfig(algorithm="rollouts", leaf="rollout", num_simulations=20, waves=waves)
        [result] = await search([toy.root()], simulator, None, config, np.random.default_rng(0))
        assert result.tree.check_valid() == (True, "")
        assert not result.tree.in_flight.any()
        assert result.failures
        found.append((result.visits.tolist(), result.q.tolist(), result.root_value, result.failures))
        widths.append([len(wave) for wave in simulator.waves[1:]])  # the first one is the root's own rollout
    assert found[0] == found[1] == found[2]
    assert widths == [[1] * 20, [6, 6, 6, 2], [20]]


def test_abandoned_rollouts_were_never_started() -> None:
    """Several over one action, too."""
    forest, descent = descent_over(2, 8, [0.5] * 2, waves=6, algorithm="rollouts", leaf="rollout")
    wave = descent.wave()
    assert [turn.leaves.tolist() for turn in wave.turns] == [[n, n] for n in range(1, 7)]
    assert forest.edge_started[0].tolist() == [3, 3]
    descent.abandon(wave)
    assert not forest.edge_started.any()
    assert not forest.child.any()
    assert forest.tree(0, certain=False).check_valid() == (True, "")


@settings(max_examples=30)
@given(st.integers(0, 500), st.sampled_from(["puct", "gumbel"]), st.integers(2, 12))
def test_a_wave_is_cut_by_its_width(seed: int, algorithm: Any, waves: int) -> None:
    """No wave is wider than allowed, and each of its expansions asks for something else."""
    toy = Toy(seed, 5)
    simulator = ToySimulator(toy)
    config = SearchConfig(algorithm=algorithm, num_simulations=60, waves=waves, rng="frozen")
    asyncio.run(search([toy.root()], simulator, toy.evaluate, config, np.random.default_rng(0)))
    for wave in simulator.waves:
        asked = [(expansion.parent, int(expansion.actions[0][0])) for expansion in wave]
        assert len(set(asked)) == len(asked) <= waves


@pytest.mark.parametrize(("rng", "expected"), [("frozen", 3), ("resample", 40), ("open_loop", 40)])
def test_ends_are_drawn_again_where_there_is_luck(rng: Any, expected: int) -> None:
    """The end of an episode needs the simulator once where steps are certain, and each time where they are not."""
    bandit = Bandit([1.0, 2.0, 3.0])
    config = SearchConfig(algorithm="gumbel", num_simulations=40, rng=rng)
    asyncio.run(search([ONE_STATE], bandit, Fixed([0.0] * 3), config, np.random.default_rng(0)))
    assert bandit.num_simulated == expected


def test_waves_of_one_come_one_by_one() -> None:
    """waves = 1: each expansion knows what the one before it found."""
    toy = Toy(2, 3, ends=0.0, cuts=0.0, depth=99)
    simulator = ToySimulator(toy)
    config = SearchConfig(num_simulations=30, rng="frozen")
    asyncio.run(search([toy.root()], simulator, toy.evaluate, config, np.random.default_rng(0)))
    assert [len(wave) for wave in simulator.waves] == [1] * 30
    names = [wave[0].keep_as or 0 for wave in simulator.waves]
    assert all(one < other for one, other in pairwise(names))
