"""Lanes that act by looking ahead, on real servers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.client.connecting import connect
from asyncrl.client.fleet import Fleet
from asyncrl.client.fleet_lane import FleetLane
from asyncrl.collector.act_batcher import ActingStopped
from asyncrl.collector.joining import ActRequest
from asyncrl.errors import LocalProtocolError, ServerRefused
from asyncrl.keyed_noise import row_keys
from asyncrl.policy import Acted
from asyncrl.records import Array
from asyncrl.run.searching import SearchActor, SearchWish
from asyncrl.search import Root, SearchConfig, search
from asyncrl.search.remote import RemoteSimulator
from asyncrl.wire.flags import FIRST
from asyncrl.wire.step_rows import StepRows
from tests.rig.processes import EnvServerProcess
from tests.rpc.serving import serving

pytestmark = [pytest.mark.rpc, pytest.mark.timeout(60)]

SEED = 5
PLAN = SearchConfig(num_simulations=12, waves=4, rng="frozen", temperature=1.0, epsilon=0.1, noise_fraction=0.25)


class Judge:
    """Knows CartPole a little: logits and values that follow from the row; draws by nothing but the row."""

    def act(
        self, obs: Sequence[Array], mask: Array | None, first: Array, carry: Sequence[Array], keys: Array | None
    ) -> Acted:
        rows = np.asarray(obs[0], np.float64)
        action = (rows[:, 2] > 0).astype(np.int64)
        logits = np.stack([-rows[:, 2], rows[:, 2]], 1).astype(np.float32)
        value = (10 - np.abs(rows).sum(1)).astype(np.float32)
        return Acted([action], np.full(len(rows), -0.5, np.float32), value, 7, kept=[logits])


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server of CartPole."""
    with serving("CartPole-v1", num_envs=64) as found:
        yield found


def wish(plan: SearchConfig | Callable[[int], SearchConfig] = PLAN, **changed: Any) -> SearchWish:
    plans = (lambda step: plan) if isinstance(plan, SearchConfig) else plan
    settings: dict[str, Any] = {"plan": plans, "seed": SEED, "keeps": True}
    return SearchWish(**(settings | changed))


def fleet_of(address: str, **changed: Any) -> Any:
    settings: dict[str, Any] = {"env": "CartPole-v1", "num_envs": 4, "lanes": 2, "seed": SEED, "snapshots": True}
    return connect(address, **(settings | changed))


async def requests_of(fleet: Fleet, step: int = 0) -> list[ActRequest]:
    """What each lane shows next."""
    rows: dict[int, tuple[FleetLane, StepRows]] = {}
    while len(rows) < len(fleet.lanes):
        arrival = await fleet.recv()
        assert arrival.rows is not None
        rows[arrival.lane.index] = arrival.lane, arrival.rows
    return [
        ActRequest(
            index,
            shown.obs,
            (shown.flags & FIRST) != 0,
            shown.mask,
            (),
            row_keys(lane.fleet_slots, np.full(lane.num_slots, step)),
            shown.to_play,
        )
        for index, (lane, shown) in sorted(rows.items())
    ]


async def assert_empty(fleet: Fleet) -> None:
    """No lane holds a byte."""
    for lane in fleet.lanes:
        await lane.snapshots.release([])
        assert lane.snapshots.store_bytes == 0


@pytest.mark.parametrize("num_groups", [1, 2])
async def test_searched_actions_follow_from_the_keys(address: str, num_groups: int) -> None:
    """Lanes submit in either order, on either kind of thread: the same actions, probabilities and targets."""
    found: list[list[Acted]] = []
    for order, brief in ((1, True), (-1, False)):
        async with fleet_of(address) as fleet:
            made = wish(num_groups=num_groups, brief=brief)
            async with SearchActor(fleet.lanes, made, Judge()) as actor:
                answers = {r.lane: actor.submit(r) for r in (await requests_of(fleet))[::order]}
                found.append([await answers[lane.index] for lane in fleet.lanes])
                assert actor.stats.roots == 4
                assert actor.stats.simulations == 4 * 12
            await assert_empty(fleet)
    for one, two in zip(*found, strict=True):
        for ours, theirs in zip([*one.action, *one.kept], [*two.action, *two.kept], strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(one.log_prob, two.log_prob)
        np.testing.assert_array_equal(one.value, two.value)


async def test_what_is_told_of_an_action_is_true(address: str) -> None:
    """Against a search from the same slots with the same noise: what was played, how likely, and what to learn."""
    async with fleet_of(address, lanes=1) as fleet:
        (lane,) = fleet.lanes
        (request,) = await requests_of(fleet)
        async with SearchActor(fleet.lanes, wish(), Judge()) as actor:
            acted = await actor.submit(request)
        simulator = RemoteSimulator()
        roots = await simulator.take(lane, request.obs, range(4))
        judge = Judge()

        async def evaluate(obs: Sequence[Array], mask: Array | None, to_play: Array | None) -> tuple[Array, Array]:
            told = judge.act(obs, mask, np.zeros(len(obs[0]), np.bool_), (), None)
            return told.kept[0], told.value

        assert request.keys is not None
        rng = np.random.default_rng([SEED, *request.keys.tolist()])
        results = await search(roots, simulator, evaluate, PLAN, rng)
    assert acted.action[0].tolist() == [result.action for result in results]
    assert lane.spec is not None
    assert acted.action[0].dtype == lane.spec.action.leaves[0].dtype
    assert acted.version == 7
    for row, result in enumerate(results):
        assert result.behavior is not None
        assert acted.log_prob[row] == pytest.approx(np.log(result.behavior[result.action]), abs=1e-6)
        assert acted.value[row] == np.float32(result.root_value)
        np.testing.assert_allclose(acted.kept[0][row], result.action_weights, atol=1e-7)
    assert acted.kept[1].tolist() == [1.0] * 4
    assert acted.kept[2].tolist() == [1.0] * 4


async def test_a_share_of_the_rows_is_searched(address: str) -> None:
    """Without `acts` the policy's own actions are played; about the share of rows has targets, by their keys."""
    weights: list[float] = []
    async with fleet_of(address, num_envs=16, autoreset="same_step") as fleet:
        made = wish(acts=False, share=0.25)
        async with SearchActor(fleet.lanes, made, Judge()) as actor:
            for step in range(12):
                requests = await requests_of(fleet, step)
                for answer, request in [(actor.submit(request), request) for request in requests]:
                    acted = await answer
                    np.testing.assert_array_equal(acted.action[0], (request.obs[0][:, 2] > 0).astype(np.int64))
                    assert (acted.log_prob == -0.5).all()
                    assert acted.kept[0].sum(1) == pytest.approx(acted.kept[1])
                    weights += acted.kept[1].tolist()
                    fleet.lanes[request.lane].step(acted.sent_action)
        await assert_empty(fleet)
    assert 0.15 < np.mean(weights) < 0.35  # 192 rows: three standard deviations


async def test_the_number_of_simulations_follows_the_steps(address: str) -> None:
    """The plan is asked with how often the slots have acted."""
    asked: list[int] = []

    def plan(step: int) -> SearchConfig:
        asked.append(step)
        return SearchConfig(num_simulations=1 + step, rng="frozen")

    async with fleet_of(address, lanes=1) as fleet, SearchActor(fleet.lanes, wish(plan=plan), Judge()) as actor:
        for step in range(3):
            (request,) = await requests_of(fleet, step)
            acted = await actor.submit(request)
            fleet.lanes[0].step(acted.sent_action)
        assert asked == [0, 1, 2]
        assert actor.stats.simulations == 4 * (1 + 2 + 3)


async def test_a_lost_lane_costs_no_other_its_actions(tmp_path: Path) -> None:
    """One of two lanes that are searched together is killed: the other has its actions, that one any at all."""

    class Killing(Judge):
        """Kills a lane at the second forward: whatever was batched, a wave is still to come."""

        def __init__(self, kill: Callable[[], None]) -> None:
            self.forwards, self._kill = 0, kill

        def act(self, *shown: Any) -> Acted:
            self.forwards += 1
            if self.forwards == 2:
                self._kill()
            return super().act(*shown)

    async with EnvServerProcess(tmp_path, envs=["CartPole-v1"]) as server, fleet_of(server.address) as fleet:
        policy = Killing(lambda: os.kill(server.lane_pids()[0], signal.SIGKILL))
        async with SearchActor(fleet.lanes, wish(), policy) as actor:
            answers = [actor.submit(request) for request in await requests_of(fleet)]
            acted = await asyncio.gather(*answers)
            assert [answer.kept[1].sum() for answer in acted] == [2.0, 2.0]
            failed = actor.stats.failures
            # Those under way were lost; to those after the loss nothing is left to begin with.
            assert failed["lane_lost"] + failed["snapshot_gone"] == failed.total() > 0
            assert actor.stats.simulations + failed.total() == 4 * 12
            requests = await requests_after_loss(fleet)
            actor.expect(requests[0].lane, True)
            acted = await asyncio.gather(*[actor.submit(request) for request in requests])
            assert acted[0].kept[1].sum() == 2.0
        await assert_empty(fleet)


async def test_a_lane_that_is_back_waits_for_the_end_of_its_search(address: str) -> None:
    """Alone in its group, given up and submitted again at once: the second search begins when the first has ended."""
    plan = SearchConfig(num_simulations=60, rng="frozen")
    async with fleet_of(address, lanes=1) as fleet, SearchActor(fleet.lanes, wish(plan), Judge()) as actor:
        (request,) = await requests_of(fleet)
        first = actor.submit(request)
        while actor.simulator.counts.frames < 3:
            await asyncio.sleep(0.001)
        first.cancel()
        acted = await actor.submit(request)
        assert acted.kept[1].sum() == 4.0
        assert actor.stats.simulations == 2 * 4 * 60
        await assert_empty(fleet)


async def requests_after_loss(fleet: Fleet) -> list[ActRequest]:
    """Of the lane that comes back, and of the other one again."""
    while True:
        arrival = await fleet.recv()
        if arrival.rows is not None:
            break
    lane = arrival.lane
    request = ActRequest(
        lane.index, arrival.rows.obs, np.ones(2, np.bool_), keys=row_keys(lane.fleet_slots, np.full(2, 9))
    )
    other = next(each for each in fleet.lanes if each is not lane)
    other.step([np.zeros(2, np.int64)])
    arrival = await fleet.recv()
    assert arrival.rows is not None
    keys = row_keys(other.fleet_slots, np.full(2, 9))
    return [request, ActRequest(other.index, arrival.rows.obs, np.zeros(2, np.bool_), keys=keys)]


async def test_a_searching_actor_leaves_nothing(address: str) -> None:
    """Left in the middle of a search: whoever waits hears of it, and no lane holds a state."""
    plan = SearchConfig(num_simulations=100_000, rng="frozen")
    async with fleet_of(address) as fleet:
        tasks = asyncio.all_tasks()
        async with SearchActor(fleet.lanes, wish(plan), Judge()) as actor:
            answers = [actor.submit(request) for request in await requests_of(fleet)]
            with pytest.raises(LocalProtocolError, match="waits for its actions already"):
                actor.submit(ActRequest(0, [], np.zeros(2, np.bool_)))
            while actor.simulator.counts.frames < 5:
                await asyncio.sleep(0.001)
        for answer in answers:
            with pytest.raises(ActingStopped):
                await answer
        with pytest.raises(ActingStopped):
            actor.submit(ActRequest(0, [], np.zeros(2, np.bool_)))
        assert actor.simulator.num_states == 0
        assert asyncio.all_tasks() == tasks
        await assert_empty(fleet)


class Late(RemoteSimulator):
    """Takes the states of lane 1 after those of lane 0, and not before it is told what comes of that."""

    def __init__(self, told: asyncio.Future[None]) -> None:
        super().__init__()
        self.told = told

    async def take(self, lane: FleetLane, *shown: Any, **more: Any) -> list[Root]:
        if lane.index == 1:
            while self.num_states < 2:
                await asyncio.sleep(0)
            await self.told
        return await super().take(lane, *shown, **more)


@pytest.mark.parametrize("how", ["refused", "closed"])
async def test_roots_that_were_taken_are_given_back(address: str, how: str) -> None:
    """One lane has given its states when another refuses, or when the search is closed: none is left."""
    async with fleet_of(address) as fleet:
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with SearchActor(fleet.lanes, wish(), Judge()) as actor:
            actor.simulator = Late(told)
            answers = [actor.submit(request) for request in await requests_of(fleet)]
            while actor.simulator.num_states < 2:
                await asyncio.sleep(0)
            if how == "refused":
                told.set_exception(ValueError("no states today"))
                await asyncio.wait(answers)
        for answer in answers:
            assert answer.exception() is not None
        assert actor.simulator.num_states == 0
        await assert_empty(fleet)


class Refusing(RemoteSimulator):
    """One slot of lane 0 has no state to hold, for one reason or another."""

    def __init__(self, error: ServerRefused) -> None:
        super().__init__()
        self.error = error

    async def take(self, lane: FleetLane, obs: Sequence[Array], which: Sequence[int], **more: Any) -> list[Root]:
        if lane.index == 0 and 1 in which:
            raise self.error
        return await super().take(lane, obs, which, **more)


@pytest.mark.parametrize("code", ["ENV_FAULT", "UNSUPPORTED", "SNAPSHOT_QUOTA"])
async def test_a_slot_that_gives_no_state_is_played_without_a_search(address: str, code: str) -> None:
    """The others of its lane and of its group are searched; that one does what the policy drew, and has no weight."""
    async with fleet_of(address, num_envs=6) as fleet:
        async with SearchActor(fleet.lanes, wish(), Judge()) as actor:
            actor.simulator = Refusing(ServerRefused(code, "not now"))
            requests = await requests_of(fleet)
            acted = await asyncio.gather(*[actor.submit(request) for request in requests])
            assert [answer.kept[1].tolist() for answer in acted] == [[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]
            request, answer = requests[0], acted[0]
            drawn = Judge().act(request.obs, None, request.first, (), None)
            assert answer.action[0][1] == drawn.action[0][1]
            assert (answer.log_prob[1], answer.value[1]) == (drawn.log_prob[1], drawn.value[1])
            assert answer.kept[0][1].tolist() == [0.0, 0.0]
            assert {answer.version for answer in acted} == {7}
            assert actor.stats.refused == {code.lower(): 1}
            assert actor.stats.roots == 5
        assert actor.simulator.num_states == 0
        await assert_empty(fleet)


async def test_a_lane_that_refuses_for_all_its_slots_ends_the_search(address: str) -> None:
    """What is no slot's own fault reaches whoever waits."""
    async with fleet_of(address) as fleet:
        async with SearchActor(fleet.lanes, wish(), Judge()) as actor:
            actor.simulator = Refusing(ServerRefused("BAD_REQUEST", "never"))
            for answer in [actor.submit(request) for request in await requests_of(fleet)]:
                with pytest.raises(ServerRefused, match="never"):
                    await answer
        await assert_empty(fleet)


async def test_what_goes_wrong_reaches_those_who_wait(address: str) -> None:
    """A policy that raises: every lane of its group hears of it, and nothing is held."""

    class Broken(Judge):
        """Never says anything."""

        def act(self, *shown: Any) -> Acted:
            raise ValueError("no idea")

    async with fleet_of(address) as fleet:
        async with SearchActor(fleet.lanes, wish(), Broken()) as actor:
            for answer in [actor.submit(request) for request in await requests_of(fleet)]:
                with pytest.raises(ValueError, match="no idea"):
                    await answer
        await assert_empty(fleet)
