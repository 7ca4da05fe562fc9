"""`SearchActor`: acts for the lanes of a fleet by looking ahead from their slots.

It stands where an act batcher stands. Neighbouring lanes form groups. Once all expected lanes of a group wait, the
states of their slots are taken, one search runs from all of them, and each lane gets its actions. The policy, where
there is one, judges the leaves of a wave in one forward, in the inference thread.

Invariants: actions follow from the seed and the keys of the rows, whatever order lanes come in
(test_searched_actions_follow_from_the_keys); an action has the probability that is told, and what is not searched has
no weight (test_what_is_told_of_an_action_is_true); a lane that is lost costs no other lane its actions
(test_a_lost_lane_costs_no_other_its_actions), and a slot whose state cannot be taken costs no other slot its search
(test_a_slot_that_gives_no_state_is_played_without_a_search); nothing is left behind
(test_a_searching_actor_leaves_nothing).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

import numpy as np

from asyncrl.client.fleet_lane import FleetLane
from asyncrl.collector.act_batcher import ActBatcher, ActingStopped
from asyncrl.collector.joining import ActRequest, Joiner, split
from asyncrl.errors import ConfigError, LaneLost, LocalProtocolError, ServerRefused
from asyncrl.keyed_noise import STEP_BITS, uniform
from asyncrl.policy import Acted, Policy
from asyncrl.records import Array
from asyncrl.run.searching_judges import PolicyJudge, PolicyProposer
from asyncrl.run.searching_rows import acted_of, targets_of
from asyncrl.search import Propose, Root, SearchConfig, SearchResult, search
from asyncrl.search.lane_actions import num_actions
from asyncrl.search.remote import BAD_STATE, RemoteSimulator
from asyncrl.wire.flags import RowState

_SHARE: Final = 0x5EA2C4  # noise of its own, for which rows are searched
_OF_A_SLOT: Final = frozenset({"ENV_FAULT", "UNSUPPORTED", "SNAPSHOT_QUOTA"})  # refusals that do not mean its lane
_STEPS: Final = np.uint64((1 << STEP_BITS) - 1)


@dataclass(frozen=True, kw_only=True)
class SearchWish:
    """How a `SearchActor` looks ahead, and what it makes of it."""

    plan: Callable[[int], SearchConfig]  # by how often a slot has acted
    seed: int = 0
    num_groups: int = 1  # of lanes that are searched together
    acts: bool = True  # play what the search found; False: what the policy drew
    share: float = 1.0  # of rows that are searched; without `acts`
    keeps: bool = False  # targets for the learner, as `Acted.kept`: see `SearchActor`
    reward: Callable[[Array], Array] | None = None  # from raw rewards to those that values are of
    brief: bool = False  # forwards on the loop
    propose: Propose | None = None  # where actions are sampled and no policy draws them


@dataclass
class SearchStats:
    """Since the actor was made."""

    roots: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # states that could not be taken, by why
    simulations: int = 0  # that came back
    failures: Counter[str] = field(default_factory=Counter)
    searching_s: float = 0.0  # with at least one search under way


class _Waiter(NamedTuple):
    request: ActRequest
    answer: asyncio.Future[Acted]


class SearchActor:
    """Use it as an async context manager. Where it `keeps`, `Acted.kept` are, for N rows of A actions:

    the policy that the search recommends, f4 [N, A]; its weight, f4 [N]: 1 where there was a search, else 0; and
    the player to move, f4 [N]: 1, or -1 for the second one.
    """

    def __init__(
        self,
        lanes: Sequence[FleetLane],
        wish: SearchWish,
        policy: Policy | None,
        simulation_lanes: Sequence[FleetLane] = (),
    ) -> None:
        spec = lanes[0].spec
        assert spec is not None
        self.stats = SearchStats()
        self.simulator = RemoteSimulator(simulation_lanes, wants_obs=policy is not None, reward=wish.reward)
        self._simulates_elsewhere = bool(simulation_lanes)
        self._lanes, self._wish, self._policy, self._spec = lanes, wish, policy, spec
        self._num_groups = min(wish.num_groups, len(lanes))
        self._expected = [True] * len(lanes)
        self._waiting: list[dict[int, _Waiter]] = [{} for _ in range(self._num_groups)]
        self._answers: dict[int, asyncio.Future[Acted]] = {}
        self._joiners = [Joiner() for _ in range(self._num_groups)]
        self._batcher: ActBatcher | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._running: dict[int, asyncio.Task[None]] = {}  # by group
        self._since = 0.0
        self._closed = False

    async def __aenter__(self) -> Self:
        if self._policy is not None:
            groups = self._num_groups
            self._batcher = ActBatcher(self._policy, groups, num_groups=groups, on_loop=self._wish.brief)
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Searches are cancelled and whoever waits hears of it. Cancelled, it leaves the forward to its thread."""
        self._closed = True
        for task in self._running.values():
            task.cancel()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ActingStopped("the search was closed"))
                answer.exception()  # not everybody asks
        assert self._tasks is not None
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            if self._batcher is not None:
                await self._batcher.close()

    # ------------------------------------------------------------------ Actor

    def submit(self, request: ActRequest) -> asyncio.Future[Acted]:
        """See `Actor`."""
        if self._closed or self._tasks is None:
            raise ActingStopped("the search is closed")
        earlier = self._answers.get(request.lane)
        if earlier is not None and not earlier.done():
            raise LocalProtocolError(f"lane {request.lane} waits for its actions already")
        answer: asyncio.Future[Acted] = asyncio.get_running_loop().create_future()
        self._answers[request.lane] = answer
        group = self._group_of(request.lane)
        self._waiting[group][request.lane] = _Waiter(request, answer)
        self._begin(group)
        return answer

    def expect(self, lane: int, coming: bool) -> None:
        """See `Actor`."""
        if self._expected[lane] is not coming:
            self._expected[lane] = coming
            self._begin(self._group_of(lane))

    def _group_of(self, lane: int) -> int:
        return lane * self._num_groups // len(self._lanes)

    def _begin(self, group: int) -> None:
        """Search, if all of a group wait. Those whose answer nobody wants any more do not.

        A lane that was lost may be back before the search that it was lost from has ended.
        """
        if self._closed or self._tasks is None or group in self._running:
            return
        found = self._waiting[group]
        waiting = {lane: waiter for lane, waiter in found.items() if not waiter.answer.done()}
        coming = [lane for lane, expected in enumerate(self._expected) if expected and self._group_of(lane) == group]
        if not waiting or any(lane not in waiting for lane in coming):
            return
        self._waiting[group] = {}
        if not self._running:
            self._since = time.perf_counter()
        task = self._tasks.create_task(self._act(group, [waiting[lane] for lane in sorted(waiting)]))
        self._running[group] = task
        task.add_done_callback(lambda _: self._ended(group))

    def _ended(self, group: int) -> None:
        del self._running[group]
        if not self._running:
            self.stats.searching_s += time.perf_counter() - self._since
        self._begin(group)

    # ------------------------------------------------------------------ a group

    async def _act(self, group: int, batch: list[_Waiter]) -> None:
        try:
            acted = await self._found(group, [request for request, _ in batch])
        except Exception as error:  # the waiters raise it
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        for (_, answer), part in zip(batch, acted, strict=True):
            if not answer.done():
                answer.set_result(part)

    async def _found(self, group: int, requests: Sequence[ActRequest]) -> list[Acted]:
        joined = self._joiners[group].join(requests)
        judge: PolicyJudge | PolicyProposer | None = None
        if self._batcher is not None:
            judge = (PolicyJudge if num_actions(self._spec) else PolicyProposer)(self._batcher, group)
        acts = self._wish.acts
        drawn = None if acts else await self._drawn(group, joined)
        which = self._chosen(requests, joined)
        roots, places = await self._roots(requests, which)
        try:
            if acts and len(places) < which.sum():
                drawn = await self._drawn(group, joined)
            results = await self._search(roots, judge, joined, places)
        finally:
            self.simulator.give_back(roots)
        acted = drawn
        if acted is None or acts:
            version = drawn.version if drawn is not None else judge.version if judge is not None else 0
            acted = acted_of(joined, self._spec, places, results, version, drawn)
        if self._wish.keeps:
            acted = acted._replace(kept=targets_of(joined, places, results, num_actions(self._spec)))
        return split(acted, [len(request.first) for request in requests])

    async def _drawn(self, group: int, joined: ActRequest) -> Acted | None:
        """What is played without a search, in all rows; None: nobody knows anything better than any legal action."""
        if self._batcher is not None:
            return await self._batcher.submit(joined._replace(lane=group))
        if self._wish.propose is None:
            return None
        assert joined.keys is not None
        found = await self._wish.propose(joined.obs, joined.mask, joined.keys, 1)
        return Acted([], np.zeros(len(found.value), np.float32), found.value, 0, kept=found.actions)

    def _chosen(self, requests: Sequence[ActRequest], joined: ActRequest) -> Array:
        """b1 [N]: rows to search from."""
        states = np.concatenate([self._lanes[request.lane].tracker.state for request in requests])
        running: Array = states == RowState.RUNNING
        if self._wish.share < 1.0:
            assert joined.keys is not None
            running &= uniform(self._wish.seed ^ _SHARE, joined.keys, 1)[:, 0] < self._wish.share
        return running

    async def _roots(self, requests: Sequence[ActRequest], which: Array) -> tuple[list[Root], list[int]]:
        """Roots, and their rows. Lanes that are lost have none, nor have slots that give no state.

        Cancelled, or failing, it leaves no snapshot.
        """
        jobs: list[asyncio.Task[list[tuple[Root, int]]]] = []
        first_row = 0
        try:
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    end = first_row + len(request.first)
                    slots = np.flatnonzero(which[first_row:end]).tolist()
                    jobs.append(group.create_task(self._roots_of(request, slots, first_row)))
                    first_row = end
        except BaseException as error:
            # Some lanes may have given their states before another refused, or before the search was closed.
            for job in jobs:
                if job.done() and not job.cancelled() and job.exception() is None:
                    self.simulator.give_back(root for root, _ in job.result())
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from None
            raise
        found = [pair for job in jobs for pair in job.result()]
        return [root for root, _ in found], [row for _, row in found]

    async def _roots_of(self, request: ActRequest, slots: list[int], first_row: int) -> list[tuple[Root, int]]:
        """Of some slots of a lane whose rows begin at `first_row`. Cancelled, or failing, it leaves no snapshot."""
        if not slots:
            return []
        lane = self._lanes[request.lane]
        try:
            roots = await self.simulator.take(lane, request.obs, slots, mask=request.mask, to_play=request.to_play)
        except LaneLost:
            return []
        except ServerRefused as error:
            if error.code not in _OF_A_SLOT:
                raise
            if len(slots) == 1:
                self.stats.refused[error.code.lower()] += 1
                return []
        else:
            return [(root, first_row + slot) for root, slot in zip(roots, slots, strict=True)]
        # One refusal is all that is told of all these slots: halves tell which of them it was.
        middle = len(slots) // 2
        found = await self._roots_of(request, slots[:middle], first_row)
        try:
            return found + await self._roots_of(request, slots[middle:], first_row)
        except BaseException:
            self.simulator.give_back(root for root, _ in found)
            raise

    async def _search(
        self,
        roots: Sequence[Root],
        judge: PolicyJudge | PolicyProposer | None,
        joined: ActRequest,
        places: Sequence[int],
    ) -> list[SearchResult]:
        if not roots:
            return []
        assert joined.keys is not None
        keys = joined.keys[list(places)]
        config = self._wish.plan(int((keys & _STEPS).max()))
        rng = np.random.default_rng([self._wish.seed, *keys.tolist()])
        results = await search(roots, self.simulator, judge or self._wish.propose, config, rng)
        stats = self.stats
        stats.roots += len(roots)
        for result in results:
            stats.simulations += result.num_simulations
            stats.failures += result.failures
        if not stats.simulations and self._simulates_elsewhere and set(stats.failures) == {BAD_STATE}:
            # It is the servers, not the states: no search to come would find out more.
            raise ConfigError(
                f"search servers believe no state that they are sent ({stats.failures[BAD_STATE]} bad_state): give all"
                " env servers the same --snapshot-key-file, and the same versions of the environment"
            )
        return results
