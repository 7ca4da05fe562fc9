"""Searching in the lanes of real servers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from asyncrl.client.connecting import connect
from asyncrl.client.fleet import Fleet
from asyncrl.client.fleet_lane import FleetLane
from asyncrl.client.snapshots import LaneSnapshots, Outcomes, SimulateEntry
from asyncrl.errors import ConfigError, LaneLost, ServerRefused
from asyncrl.records import Array
from asyncrl.search import Expansion, Outcome, SearchConfig, SearchResult, search
from asyncrl.search.lane_actions import check_support
from asyncrl.search.local import LocalSimulator, search_env
from asyncrl.search.remote import RemoteSimulator
from asyncrl.wire.step_rows import StepRows
from tests.rig.processes import EnvServerProcess
from tests.rig.proxy import FaultProxy
from tests.rpc.serving import serving
from tests.unit.search.terse import WORTH, Terse

pytestmark = [pytest.mark.rpc, pytest.mark.timeout(60)]

LAKE = 'lake=FrozenLake-v1{"is_slippery": false}'
TERSE = "terse=tests.unit.search.terse:Terse"
SEED = 3


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server of CartPole, of a lake without luck, and of a game that says little."""
    with serving("CartPole-v1", LAKE, "CliffWalking-v1", TERSE, num_envs=64) as found:
        yield found


async def judge(obs: Sequence[Array], mask: Array | None, to_play: Array | None) -> tuple[Array, Array]:
    """A smooth function of CartPole's observation, row by row."""
    rows = np.asarray(obs[0], np.float64)
    return np.stack([rows.sum(1), rows[:, 2] * 10], 1), 10 - np.abs(rows).sum(1)


async def rows_of(fleet: Fleet) -> dict[FleetLane, StepRows]:
    """The next rows of every lane."""
    found: dict[FleetLane, StepRows] = {}
    while len(found) < len(fleet.lanes):
        arrival = await fleet.recv()
        assert arrival.rows is not None
        found[arrival.lane] = arrival.rows
    return found


async def searched(
    simulator: RemoteSimulator,
    rows: dict[FleetLane, StepRows],
    config: SearchConfig,
    evaluate: Any = judge,
    seed: int = SEED,
) -> list[SearchResult]:
    """One search from every slot of these lanes."""
    roots = [
        root
        for lane, shown in rows.items()
        for root in await simulator.take(lane, shown.obs, range(lane.num_slots), mask=shown.mask)
    ]
    try:
        return await search(roots, simulator, evaluate, config, np.random.default_rng(seed))
    finally:
        simulator.give_back(roots)


async def assert_empty(lanes: Sequence[FleetLane]) -> None:
    """No lane holds a byte."""
    for lane in lanes:
        await lane.snapshots.release([])
        assert lane.snapshots.store_bytes == 0, lane


def assert_settled(results: Sequence[SearchResult]) -> None:
    """Trees are whole, and nothing is on its way in them."""
    for result in results:
        assert result.tree.check_valid().ok, result.tree.check_valid().reason
        assert not result.tree.in_flight.any()


def assert_alike(ours: SearchResult, theirs: SearchResult) -> None:
    """The same visits and values, bit for bit."""
    assert ours.visits.tolist() == theirs.visits.tolist()
    np.testing.assert_array_equal(ours.q, theirs.q)
    assert ours.root_value == theirs.root_value


PLAN = SearchConfig(num_simulations=40, waves=6, rng="frozen")


async def test_remote_and_local_searches_agree(address: str) -> None:
    """CartPole from the same reset: lanes find what copies in this process find; so do lanes that only simulate."""
    env = gymnasium.make("CartPole-v1")
    found: list[SearchResult] = []
    for slot in range(3):
        obs, _ = env.reset(seed=SEED + slot)
        local = LocalSimulator(env)
        # One generator for all of them would give each another seed than it has in a search of three.
        found += await search([local.root(env, obs)], local, judge, PLAN, np.random.default_rng(0))
    wish: dict[str, Any] = {"env": "CartPole-v1", "seed": SEED, "snapshots": True}
    async with (
        connect(address, num_envs=3, lanes=2, **wish) as fleet,
        connect(address, env="CartPole-v1", num_envs=2, snapshots=True, simulation=True) as others,
    ):
        check_support([*fleet.lanes, *others.lanes], exports=True)
        rows = await rows_of(fleet)
        for simulator in (RemoteSimulator(), RemoteSimulator(others.lanes)):
            results = await searched(simulator, dict(sorted(rows.items(), key=lambda pair: pair[0].index)), PLAN)
            for ours, theirs in zip(results, found, strict=True):
                assert_alike(ours, theirs)
            assert simulator.num_states == 0
            assert simulator.counts.entries == 3 * 40
        await assert_empty([*fleet.lanes, *others.lanes])


@pytest.mark.parametrize("rng", ["frozen", "open_loop"])
async def test_infos_that_say_nothing_are_read_alike(address: str, rng: Any) -> None:
    """No mask: everything is allowed; no player: the same as before. In trees, in rollouts, after one step or several.

    A rollout that never chose 1 would be worth 8 more: one of two million.
    """
    config = SearchConfig(leaf="rollout", num_simulations=24, rng=rng, discount=1.0)
    env = Terse()
    _obs, info = env.reset()
    ours = await search_env(env, config, info=info)
    async with connect(address, env="terse", num_envs=1, snapshots=True) as fleet:
        simulator, arrival = RemoteSimulator(), await fleet.recv()
        assert arrival.rows is not None
        async with simulator.rooted(arrival.lane, arrival.rows, [0]) as roots:
            [theirs] = await search(roots, simulator, None, config, np.random.default_rng(0))
    for found in (ours, theirs):
        assert found.tree.depth() > 3
        assert found.q.tolist() == [WORTH, WORTH]
        assert found.tree.check_valid() == (True, "")
    assert_alike(ours, theirs)


async def test_live_slots_go_on_as_if_nobody_had_searched(address: str) -> None:
    """Two fleets with the same seeds and actions, one of them searched between steps: the same rows."""
    wish: dict[str, Any] = {"env": "CartPole-v1", "num_envs": 4, "lanes": 2, "seed": SEED, "snapshots": True}
    simulator = RemoteSimulator()
    rng = np.random.default_rng(0)
    async with connect(address, **wish) as one, connect(address, **wish) as two:
        for _ in range(15):
            rows, plain = await rows_of(one), await rows_of(two)
            await searched(simulator, rows, PLAN)
            for lane, twin in zip(one.lanes, two.lanes, strict=True):
                for ours, theirs in zip(rows[lane].obs, plain[twin].obs, strict=True):
                    np.testing.assert_array_equal(ours, theirs)
                np.testing.assert_array_equal(rows[lane].flags, plain[twin].flags)
                action = [rng.integers(0, 2, lane.num_slots)]
                assert lane.step(action)
                assert twin.step(action)
        await assert_empty(one.lanes)


async def test_a_plan_from_live_slots_reaches_the_goal(address: str) -> None:
    """The lake without luck, by rollouts in the lane: every slot reaches the other shore."""
    simulator = RemoteSimulator(wants_obs=False)
    config = SearchConfig(num_simulations=200, waves=8, leaf="rollout", rollout_steps=100, rng="frozen")
    async with connect(address, env="lake", num_envs=2, lanes=1, seed=SEED, snapshots=True) as fleet:
        (lane,) = fleet.lanes
        returns: list[float] = []
        for step in range(60):
            rows = (await rows_of(fleet))[lane]
            if rows.stats is not None:
                returns += rows.stats.returns.tolist()
            if len(returns) >= 2:
                break
            results = await searched(simulator, {lane: rows}, config, None, step)
            lane.step([np.array([result.action for result in results])])
        assert returns[:2] == [1.0, 1.0]
        await assert_empty(fleet.lanes)


async def test_no_snapshot_is_left_of_a_cancelled_search(address: str) -> None:
    """Cancelled in any of its rounds, in its own lane and in simulation lanes."""
    wish: dict[str, Any] = {"env": "CartPole-v1", "snapshots": True}
    async with (
        connect(address, num_envs=2, lanes=1, seed=SEED, **wish) as fleet,
        connect(address, num_envs=2, simulation=True, **wish) as others,
    ):
        rows = await rows_of(fleet)
        for simulator in (RemoteSimulator(), RemoteSimulator(others.lanes)):
            for rounds in range(0, 12, 2):
                async with asyncio.TaskGroup() as group:
                    task = group.create_task(searched(simulator, rows, SearchConfig(num_simulations=10_000, waves=4)))
                    until = simulator.counts.frames + rounds
                    while simulator.counts.frames < until:
                        await asyncio.sleep(0)
                    task.cancel()
                assert task.cancelled()
                assert simulator.num_states == 0
            await assert_empty([*fleet.lanes, *others.lanes])


async def test_a_full_store_makes_the_ways_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for eight states no simulation fails, and what is found is what a roomy lane finds. Every step is
    counted, also of those that were made for a state without room."""
    asked, simulate = 0, LaneSnapshots.simulate

    async def noted(self: LaneSnapshots, entries: Sequence[SimulateEntry]) -> Outcomes:
        nonlocal asked
        asked += sum(len(entry.actions[0]) for entry in entries)
        return await simulate(self, entries)

    monkeypatch.setattr(LaneSnapshots, "simulate", noted)
    options = ["--quota", "snapshots=8"]
    async with (
        EnvServerProcess(tmp_path, envs=["CartPole-v1"], options=options) as server,
        connect(server.address, env="CartPole-v1", seed=SEED, snapshots=True) as fleet,
    ):
        rows = await rows_of(fleet)
        simulator = RemoteSimulator()
        [result] = await searched(simulator, rows, PLAN)
        assert simulator.counts.unkept > 0
        assert simulator.counts.steps == asked > simulator.counts.entries  # no pole falls so soon
        assert not result.failures
        assert_settled([result])
        await assert_empty(fleet.lanes)
    with serving("CartPole-v1") as roomy:
        async with connect(roomy, env="CartPole-v1", seed=SEED, snapshots=True) as fleet:
            [theirs] = await searched(RemoteSimulator(), await rows_of(fleet), PLAN)
    assert_alike(result, theirs)


async def test_a_lost_lane_fails_its_expansions(tmp_path: Path) -> None:
    """One of two simulation lanes is killed in the middle: its share fails by name, the other's goes on."""

    class Killing(RemoteSimulator):
        """Kills the lane that was opened last before its tenth wave."""

        num_waves = 0

        async def simulate(self, wave: Sequence[Expansion]) -> list[Outcome]:
            self.num_waves += 1
            if self.num_waves == 10:
                os.kill(server.lane_pids()[-1], signal.SIGKILL)
            return await super().simulate(wave)

    key = tmp_path / "key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    options = ["--snapshot-key-file", str(key)]
    async with EnvServerProcess(tmp_path, envs=["CartPole-v1"], options=options) as server:
        wish: dict[str, Any] = {"env": "CartPole-v1", "snapshots": True}
        async with (
            connect(server.address, num_envs=2, lanes=1, seed=SEED, **wish) as fleet,
            connect(server.address, num_envs=2, simulation=True, **wish) as others,
        ):
            simulator = Killing(others.lanes)
            results = await searched(
                simulator, await rows_of(fleet), SearchConfig(num_simulations=200, waves=6, rng="frozen")
            )
            assert_settled(results)
            for result in results:
                assert set(result.failures) <= {"lane_lost"}
                assert result.num_simulations + result.failures.total() == 200
                assert result.num_simulations >= 100
            assert simulator.counts.lost == sum(result.failures["lane_lost"] for result in results) > 0
            assert simulator.num_states == 0
            await assert_empty([*fleet.lanes, *(lane for lane in others.lanes if lane.up)])


@dataclass
class Dropping:
    """A simulator whose every tenth wave loses a reply on the wire: the connection ends in the middle of it."""

    inner: RemoteSimulator
    proxy: FaultProxy
    num_waves: int = 0
    num_dropped: int = 0

    async def simulate(self, wave: Sequence[Expansion]) -> list[Outcome]:
        self.num_waves += 1
        if self.num_waves % 10 == 0:
            self.proxy.to_client.reset_after = self.proxy.to_client.passed + 40
            self.num_dropped += 1
        return await self.inner.simulate(wave)

    async def release(self, states: Sequence[int]) -> None:
        await self.inner.release(states)


@pytest.mark.parametrize("resumable", [True, False], ids=["resumed", "lost"])
async def test_dropped_replies_leave_nothing(tmp_path: Path, resumable: bool) -> None:
    """One reply in ten is dropped. A lane that resumes answers again, and nothing is different; where it is lost
    instead, what it had fails. Nothing is in flight, every simulation is accounted for, no state is left anywhere."""
    config = SearchConfig(num_simulations=120, waves=4, rng="frozen")
    key = tmp_path / "key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    server = EnvServerProcess(tmp_path, envs=["CartPole-v1"], options=["--snapshot-key-file", str(key)])
    wish: dict[str, Any] = {"env": "CartPole-v1", "snapshots": True}
    async with (
        server,
        FaultProxy(("127.0.0.1", int(server.address.rpartition(":")[2]))) as proxy,
        connect(server.address, num_envs=1, seed=SEED, **wish) as fleet,
        connect(proxy.address, num_envs=1, simulation=True, resumable=resumable, **wish) as others,
    ):
        rows = await rows_of(fleet)
        [undisturbed] = await searched(RemoteSimulator(), rows, config)
        simulator = RemoteSimulator(others.lanes)
        (lane,) = fleet.lanes
        roots = await simulator.take(lane, rows[lane].obs, [0])
        dropping = Dropping(simulator, proxy)
        [result] = await search(roots, dropping, judge, config, np.random.default_rng(SEED))
        simulator.give_back(roots)
        assert dropping.num_dropped >= 3
        assert_settled([result])
        assert result.num_simulations + result.failures.total() == 120
        assert simulator.num_states == 0
        if resumable:
            assert not result.failures
            assert_alike(result, undisturbed)
            assert others.stats.faults["stream_resumed"] >= 3
        else:
            assert set(result.failures) == {"lane_lost"}
        async with asyncio.timeout(20):
            while not others.lanes[0].up:
                await asyncio.sleep(0.01)
        await assert_empty([*fleet.lanes, *others.lanes])


async def test_what_cannot_look_ahead_is_said(address: str) -> None:
    """A lane that was opened without snapshots; and the row that is refused leaves nothing in its lane."""
    async with connect(address, env="CartPole-v1", num_envs=2, lanes=1) as fleet:
        with pytest.raises(ConfigError, match="cannot look ahead in this environment"):
            check_support(fleet.lanes)
    async with connect(address, env="CartPole-v1", num_envs=2, lanes=1, snapshots=True, auto_reset=False) as fleet:
        (lane,) = fleet.lanes
        lane.reset(np.array([True, False]))
        rows = await rows_of(fleet)
        with pytest.raises(ServerRefused, match="row 1 is in no episode"):
            await searched(RemoteSimulator(), rows, PLAN)
        await assert_empty(fleet.lanes)


async def test_rollouts_that_no_server_makes_are_refused(address: str) -> None:
    """Before anything is asked: every simulation would fail."""
    async with connect(address, env="CartPole-v1", num_envs=1, snapshots=True) as fleet:
        simulator = RemoteSimulator()
        with pytest.raises(ConfigError, match="rollout_steps is 10001: an env server makes 10000 at most"):
            await searched(simulator, await rows_of(fleet), SearchConfig(leaf="rollout", rollout_steps=10_001), None)
        assert simulator.counts.entries == simulator.num_states == 0


async def test_a_lane_that_is_gone_has_no_roots(tmp_path: Path) -> None:
    """Its loss is what `take` raises, and roots that were taken before fail by name."""
    async with (
        EnvServerProcess(tmp_path, envs=["CartPole-v1"]) as server,
        connect(server.address, env="CartPole-v1", seed=SEED, snapshots=True) as fleet,
    ):
        rows = await rows_of(fleet)
        (lane,) = fleet.lanes
        simulator = RemoteSimulator()
        async with simulator.rooted(lane, rows[lane], [0]) as roots:
            os.kill(server.lane_pids()[0], signal.SIGKILL)
            [result] = await search(roots, simulator, judge, PLAN, np.random.default_rng(0))
            assert result.failures.total() == 40
            assert result.visits.sum() == 0
            assert_settled([result])
        with pytest.raises(LaneLost):
            await simulator.take(lane, rows[lane].obs, [0])
        assert simulator.num_states == 0
