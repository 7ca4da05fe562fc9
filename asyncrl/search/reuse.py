"""Going on with a tree after its action was played in the real environment.

    config = SearchConfig(keep_tree=True, ...)
    [result] = await search([root], simulator, evaluate, config, rng)
    obs, ... = real environment steps result.action
    tree = await advance(result.tree, result.action, obs, simulator)
    root = Root(state=..., obs=obs, tree=tree)                         # tree may be None: then it begins anew

Invariant: the subtree is kept only where the simulator foresaw the observation that came
(test_a_tree_goes_on_only_where_it_foresaw_what_came), and every other state is released
(test_advancing_releases_what_was_not_played).
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl.records import Array
from asyncrl.search.planner import obs_crc
from asyncrl.search.simulator import Simulator
from asyncrl.search.tree import Tree


async def advance(tree: Tree, action: int, obs: Sequence[Array], simulator: Simulator) -> Tree | None:
    """What hangs under the action that was played, if the observation after it is the foreseen one.

    The root's state is the caller's again: the new tree holds none for it. Cancelled, states may be left with the
    simulator.
    """
    subtree = tree.subtree(action)
    if subtree is not None and int(subtree.obs_crc[0]) != obs_crc(obs):
        subtree = None
    if subtree is not None:
        subtree.state[0] = 0
    kept = set() if subtree is None else set(subtree.states)
    superfluous = [state for state in tree.states if state not in kept]
    if superfluous:
        await simulator.release(superfluous)
    return subtree


async def release_tree(tree: Tree, simulator: Simulator) -> None:
    """Give back every state of a tree that nobody goes on with."""
    if tree.states:
        await simulator.release(tree.states)
