"""`search`: looks ahead from many roots at once, in whatever simulates and with whoever judges.

A search is a sequence of rounds: start a wave of simulations, ask the simulator, have the leaves judged, settle. Trees
change in one piece between two awaits. Roots share rounds and nothing else.

Invariants: roots that are searched together get what each gets alone, bit for bit (test_together_as_alone); however a
search ends, nothing is in flight and the simulator holds nothing of it, unless the trees are to be kept
(test_nothing_is_left_behind_however_a_search_ends), which are kept of all groups or of none
(test_trees_are_kept_of_all_groups_or_of_none); a state that is gone is asked for once, and what is below it is reached
from further up (test_what_is_below_a_lost_state_is_reached_again); a deadline cuts a search short, and the tree so far
is whole (test_a_deadline_returns_the_tree_so_far).
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from asyncrl.errors import ConfigError
from asyncrl.records import Array
from asyncrl.search.config import SearchConfig
from asyncrl.search.descent import Descent, Wave
from asyncrl.search.expanding import PROPOSAL, Expander, Root
from asyncrl.search.forest import Forest, Growth
from asyncrl.search.judging import Judge, Leaf
from asyncrl.search.playing import SearchResult, play
from asyncrl.search.selection import Selection, make_selection
from asyncrl.search.settling import Arrivals, Settler, arrivals_of
from asyncrl.search.simulator import OK, SNAPSHOT_GONE, Evaluate, Expansion, Propose, Simulator


async def search(
    roots: Sequence[Root],
    simulator: Simulator,
    evaluate: Evaluate | Propose | None,
    config: SearchConfig,
    rng: np.random.Generator,
) -> list[SearchResult]:
    """One result per root. `rng` gives one number for each root and follows from nothing else.

    Cancelled, or failing, it leaves no state with the simulator and no simulation in flight.
    """
    seeds = [int(rng.integers(1 << 63)) for _ in roots]
    parts = [part.tolist() for part in np.array_split(np.arange(len(roots)), config.groups) if len(part)]
    planners = [
        Planner([roots[i] for i in part], [seeds[i] for i in part], simulator, evaluate, config) for part in parts
    ]
    try:
        if len(planners) == 1:
            return await planners[0].run()
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(planner.run()) for planner in planners]
    except BaseException as error:
        for planner in planners:
            await planner.release()
        if isinstance(error, BaseExceptionGroup):
            raise error.exceptions[0] from None
        raise
    return [result for task in running for result in task.result()]


class Planner:
    """One group of roots. `forest` and what goes with it exist once the roots are judged."""

    forest: Forest
    _selection: Selection
    _descent: Descent
    _settler: Settler

    def __init__(
        self,
        roots: Sequence[Root],
        seeds: Sequence[int],
        simulator: Simulator,
        evaluate: Evaluate | Propose | None,
        config: SearchConfig,
    ) -> None:
        if any(root.tree is not None for root in roots) and config.algorithm != "puct":
            raise ConfigError("only PUCT goes on with a tree: Gumbel's plan is for a root that was not visited")
        self._roots, self._simulator, self._config = roots, simulator, config
        self._rngs = [np.random.default_rng(seed) for seed in seeds]
        self._judge = Judge(evaluate, config)
        self._expander = Expander(roots, seeds, config)
        # States that the simulator keeps for us.
        self._held = {state for root in roots if root.tree is not None for state in root.tree.states}
        self._failures = [Counter[str]() for _ in roots]

    async def run(self) -> list[SearchResult]:
        """Plan, and give back what is held, but the trees that are to be kept. See `search`."""
        keep: set[int] = set()
        try:
            await self._plant()
            await self._run_rounds()
            results = [self._result(row) for row in range(len(self._roots))]
            if self._config.keep_tree:
                keep = {state for result in results for state in result.tree.states}
            return results
        finally:
            await self.release(keep)

    async def release(self, keep: Collection[int] = ()) -> None:
        """Give back what is held, but `keep`."""
        superfluous = sorted(self._held.difference(keep))
        if superfluous:
            await self._simulator.release(superfluous)
            self._held.difference_update(superfluous)

    # ------------------------------------------------------------------------------------------------ roots

    async def _plant(self) -> None:
        """Judge the roots that bring no tree, and make the forest."""
        roots, config = self._roots, self._config
        new = [row for row, root in enumerate(roots) if root.tree is None]
        judged = None
        if new:
            keys = [self._expander.key(row, 0, PROPOSAL) for row in new]
            leaves = [
                Leaf(roots[row].obs, roots[row].mask, roots[row].to_play, key)
                for row, key in zip(new, keys, strict=True)
            ]
            judged = await self._judge.judge(leaves)
            if config.leaf == "rollout":
                judged.value[:] = await self._rollouts(new)
        trees = {row: root.tree for row, root in enumerate(roots) if root.tree is not None}
        visited = np.array([trees[row].edge_visits[0].sum() if row in trees else 0 for row in range(len(roots))])
        budget = np.maximum(config.num_simulations - visited, 0)
        size = max(int(budget[row]) + (len(trees[row]) if row in trees else 1) for row in range(len(roots)))
        width = judged.mask.shape[1] if judged is not None else next(iter(trees.values())).num_actions
        self._judge.num_actions = width
        self.forest = Forest(len(roots), size, width)
        if judged is not None:
            to_play = np.array([roots[row].to_play or 0 for row in new], np.int32)
            state = np.zeros(len(new), np.int64)
            growth = Growth(judged.logits, judged.mask, judged.value, to_play, state, judged.actions)
            self.forest.expand(self.forest.base(np.array(new)), growth)
        for row, earlier in trees.items():
            self.forest.adopt(row, earlier)
        self._selection = make_selection(self.forest, config, self._rngs)
        self._descent = Descent(self.forest, self._selection, config, budget.astype(np.int64))
        self._settler = Settler(self.forest, self._descent, config)

    async def _rollouts(self, rows: Sequence[int]) -> Array:
        """f8: what a rollout returns from each of these roots; 0 where it failed."""
        outcomes = await self._simulator.simulate(self._expander.of_roots(rows))
        for row, outcome in zip(rows, outcomes, strict=True):
            if outcome.status != OK:
                self._failures[row][outcome.status] += 1
        found = np.array([o.rollout_return if o.status == OK else 0.0 for o in outcomes], np.float64)
        return np.where(np.isfinite(found), found, 0.0)

    # ------------------------------------------------------------------------------------------------ rounds

    async def _run_rounds(self) -> None:
        loop = asyncio.get_running_loop()
        limit = self._config.deadline_s
        deadline = None if limit is None else loop.time() + limit
        try:
            async with asyncio.timeout_at(deadline) as scope:
                while (self._descent.left > 0).any() and (deadline is None or loop.time() < deadline):
                    await self._round()
        except TimeoutError:
            if not scope.expired():  # somebody else's
                raise

    async def _round(self) -> None:
        wave = self._descent.wave()
        if not wave.turns:
            await asyncio.sleep(0)  # all of it was settled on the spot; the loop has others to serve
            return
        settled = False
        try:
            expansions = self._expander.of_wave(self.forest, wave)
            self._held.update(expansion.keep_as for expansion in expansions if expansion.keep_as is not None)
            outcomes = await self._simulator.simulate(expansions)
            listed = 0 if self._config.num_sampled else self.forest.num_actions
            arrivals = arrivals_of(expansions, outcomes, listed)
            which, leaves = self._to_judge(wave, arrivals)
            judged = await self._judge.judge(leaves) if leaves else None
            self._settler.settle(wave, arrivals, judged, which)
            settled = True
        finally:
            if not settled:
                self._descent.abandon(wave)
        self._remember(wave, expansions, arrivals)

    def _to_judge(self, wave: Wave, arrivals: Arrivals) -> tuple[Array, list[Leaf]]:
        """i8 [J]: the arrivals that somebody has to judge, and their states."""
        if self._config.algorithm == "rollouts":
            return np.zeros(0, np.int64), []
        wanted = arrivals.ok & ~arrivals.terminated
        if self._config.leaf != "evaluate":
            wanted &= ~arrivals.truncated
        which = np.flatnonzero(wanted)
        rows = np.concatenate([turn.rows for turn in wave.turns]).tolist()
        attempts = np.concatenate([turn.attempt for turn in wave.turns]).tolist()
        leaves: list[Leaf] = []
        for i in which.tolist():
            outcome = arrivals.outcomes[i]
            mask = None if outcome.truncated else outcome.mask  # nobody moves on from there
            key = self._expander.key(rows[i], attempts[i], PROPOSAL)
            leaves.append(Leaf(outcome.obs, mask, outcome.to_play, key))
        return which, leaves

    def _remember(self, wave: Wave, expansions: Sequence[Expansion], arrivals: Arrivals) -> None:
        """What went wrong, what is held, and what was seen where trees are kept."""
        for expansion, outcome in zip(expansions, arrivals.outcomes, strict=True):
            if outcome.status != OK:
                self._failures[expansion.root][outcome.status] += 1
            if outcome.status == SNAPSHOT_GONE and isinstance(expansion.parent, int):
                self.forest.lose(expansion.root, expansion.parent)
            if not outcome.kept and expansion.keep_as is not None and outcome.status == OK:
                self._held.discard(expansion.keep_as)
        if self._config.keep_tree:
            at = np.concatenate([self.forest.base(turn.rows) + turn.leaves for turn in wave.turns])
            self.forest.obs_crc[at] = [obs_crc(outcome.obs) for outcome in arrivals.outcomes]

    # ------------------------------------------------------------------------------------------------ results

    def _result(self, row: int) -> SearchResult:
        forest, at = self.forest, row * self.forest.num_nodes
        best, weights = self._selection.best(row), self._selection.weights(row)
        action, behavior = play(best, weights, forest.mask[at], self._config, self._rngs[row])
        visits = forest.edge_visits[at].astype(np.int64)
        return SearchResult(
            action=action,
            visits=visits,
            action_weights=weights,
            q=np.where(visits > 0, forest.q[at], np.nan),
            root_value=float(forest.value[at]),
            behavior=behavior,
            proposed=[leaf[at] for leaf in forest.actions],
            tree=forest.tree(row, self._config.rng == "frozen"),
            failures=self._failures[row],
        )


def obs_crc(obs: Iterable[Array]) -> int:
    """CRC-32 of an observation's bytes."""
    crc = 0
    for leaf in obs:
        crc = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), crc)
    return crc
