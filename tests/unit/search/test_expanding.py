"""From leaves to what the simulator is asked."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.search import Root, SearchConfig, search
from asyncrl.search.expanding import PROPOSAL, ROLLOUT, STEP, noise_key
from tests.unit.search.toys import Toy, ToySimulator


@given(st.integers(0, (1 << 63) - 1))
def test_seeds_differ_by_simulation_and_use(seed: int) -> None:
    """Of one root, no two seeds are alike, and all of them fit a generator."""
    keys = {noise_key(seed, attempt, use) for attempt in range(200) for use in (STEP, ROLLOUT, PROPOSAL)}
    assert len(keys) == 600
    assert min(keys) >= 0
    assert max(keys) < 1 << 63


async def test_the_way_is_one_step_from_a_state_that_is_held() -> None:
    """Every expansion begins at the parent of its leaf, and takes the action that leads there."""
    toy = Toy(9, 3, ends=0.0, cuts=0.0)
    simulator = ToySimulator(toy)
    config = SearchConfig(num_simulations=50, rng="frozen", keep_tree=True)
    [result] = await search([toy.root()], simulator, toy.evaluate, config, np.random.default_rng(0))
    tree = result.tree
    nodes = {int(state): node for node, state in enumerate(tree.state.tolist()) if state}
    for wave in simulator.waves:
        for expansion in wave:
            node = nodes.get(expansion.keep_as or 0)
            if node is not None:
                assert expansion.actions[0].tolist() == [tree.parent_action[node]]
                parent = int(tree.parent[node])
                assert expansion.parent == (int(tree.state[parent]) if parent else ("root", ()))


async def test_open_loop_goes_all_the_way_from_the_root() -> None:
    """Each expansion is a whole sequence of actions, and asks for no state."""
    toy = Toy(9, 3, ends=0.0, cuts=0.0)
    simulator = ToySimulator(toy)
    config = SearchConfig(num_simulations=50, rng="open_loop")
    [result] = await search([toy.root()], simulator, toy.evaluate, config, np.random.default_rng(0))
    paths = [tuple(expansion.actions[0].tolist()) for wave in simulator.waves for expansion in wave]
    nodes = {tuple(result.tree.path(node)) for node in np.flatnonzero(result.tree.status).tolist()}
    assert nodes <= {(), *paths}
    assert {expansion.keep_as for wave in simulator.waves for expansion in wave} == {None}


def test_a_root_needs_a_state_and_no_more() -> None:
    """Everything else has a default."""
    root = Root(state="here")
    assert (root.obs, root.mask, root.to_play, root.tree) == ((), None, None, None)
