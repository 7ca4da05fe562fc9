"""The collector over real servers, with a learner's thread that takes: what is in the unrolls is what was executed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import gymnasium
import numpy as np
import pytest

from asyncrl.buffers.handoff import Handoff
from asyncrl.client.connecting import connect
from asyncrl.client.fleet import Fleet
from asyncrl.collector.collector import Collector
from asyncrl.collector.counts import CollectorConfig, CollectorState
from asyncrl.keyed_noise import uniform
from asyncrl.policy import Acted
from asyncrl.records import Unroll
from asyncrl.wire.handshake import rebuilt_seed
from asyncrl.wire.tensors import Array
from tests.rig import ledger_rules as rules
from tests.rig.ledger_env import NUM_ACTIONS
from tests.rig.ledger_rules import RecordKind
from tests.rig.processes import EnvServerProcess, ledger_option
from tests.unit.collector.test_collector import equal

pytestmark = pytest.mark.rpc

LONG_S = 40.0
SEED = 50


class KeyedPolicy:
    """Uniform actions by key. The value tells the place of a row in its forward, the log-prob how large that was."""

    def __init__(self, num_actions: int) -> None:
        self._num_actions = num_actions

    def act(
        self, obs: Sequence[Array], mask: Array | None, first: Array, carry: Sequence[Array], keys: Array | None
    ) -> Acted:
        assert keys is not None
        action = (uniform(3, keys, 1)[:, 0] * self._num_actions).astype(np.int64)
        place = np.arange(len(first), dtype=np.float32)
        return Acted([action], np.full(len(first), -len(first), np.float32), place, 0)


class Learner:
    """A thread that takes and, as a learner would, says so. Leaving it stops the collector."""

    def __init__(self, fleet: Fleet, num_actions: int = 2, capacity: int = 64, **config: Any) -> None:
        self.taken: list[list[Unroll]] = []
        self.handoff = Handoff(capacity)
        settings = CollectorConfig(**{"num_steps": 16, **config})
        policy, state = KeyedPolicy(num_actions), CollectorState.fresh(fleet.num_envs)
        self.collector = Collector(fleet, policy, self.handoff, settings, state)
        self._num_lanes = len(fleet.lanes)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while (unrolls := self.handoff.take()) is not None:
            self.taken.append(unrolls)
            self._loop.call_soon_threadsafe(self.collector.trained, len(self.taken))

    async def __aenter__(self) -> Self:
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        self._thread.start()
        self.running = self._group.create_task(self.collector.run())
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.collector.stop()
        try:
            await self._group.__aexit__(kind, error, trace)
        finally:
            while self.handoff.num_waiting and not self.handoff.is_stopped:
                await asyncio.sleep(0.001)
            self.handoff.stop()
            await asyncio.to_thread(self._thread.join, LONG_S)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(LONG_S):
            while not condition():
                await asyncio.sleep(0.005)

    async def rounds_are_there(self, count: int) -> None:
        await self.until(lambda: len(self.taken) >= count)

    async def have_been_lost(self, lanes: int) -> None:
        await self.until(lambda: self.collector.stats.lost_lanes == lanes)

    async def lanes_have_stepped(self, steps: int) -> None:
        """Each of them, from now on."""
        now = self.collector.stats.steps_by_lane
        before = now.copy()
        await self.until(lambda: all(now[lane] >= before[lane] + steps for lane in range(self._num_lanes)))

    @property
    def unrolls(self) -> list[Unroll]:
        return [unroll for unrolls in self.taken for unroll in unrolls]


def next_obs(unroll: Unroll) -> tuple[Array, Array, Array]:
    """Of each valid row whose next observation is there: (t, b) i8 [N, 2], its observation, and the next one."""
    where = np.argwhere(unroll.valid & ~unroll.terminated)
    ends = {tuple(row): index for index, row in enumerate(unroll.end_rows.tolist())}
    obs = unroll.obs[0]
    after = [
        unroll.end_obs[0][ends[t, b]]
        if (t, b) in ends
        else (obs[t + 1, b] if t + 1 < unroll.num_steps else unroll.last_obs[0][b])
        for t, b in where.tolist()
    ]
    return where, obs[where[:, 0], where[:, 1]], np.array(after).reshape(-1, *obs.shape[2:])


@pytest.mark.parametrize("lag", [0, None])
@pytest.mark.parametrize(
    ("host", "autoreset"), [("slots", "same_step"), ("slots", "next_step"), ("native", "next_step")]
)
async def test_rows_obey_the_physics_of_cartpole(tmp_path: Path, host: Any, autoreset: Any, lag: int | None) -> None:
    """Each row, stepped again by an environment of our own that starts at its observation, gives what it holds."""
    async with (
        EnvServerProcess(tmp_path, envs=["CartPole-v1"], num_envs=16) as server,
        connect(
            server.address, env="CartPole-v1", num_envs=16, lanes=2, host=host, autoreset=autoreset, seed=SEED
        ) as fleet,
        Learner(fleet, lag=lag) as learner,
    ):
        await learner.until(lambda: len(learner.unrolls) >= 8)
    env = gymnasium.make("CartPole-v1").unwrapped
    stats, ends = learner.collector.stats, 0
    for unroll in learner.unrolls:
        where, before, after = next_obs(unroll)
        env.reset()
        for (t, b), obs, following in zip(where.tolist(), before, after, strict=True):
            env.state = obs.astype(np.float64)  # type: ignore[attr-defined]
            env.steps_beyond_terminated = None  # type: ignore[attr-defined]
            true, reward, terminated, _, _ = env.step(unroll.action[0][t, b])
            np.testing.assert_allclose(following, true, atol=1e-5)
            assert reward == unroll.reward[t, b]
            assert not terminated or (np.abs(true) > [2.3, -1, 0.2, -1]).any()
        ends += int(unroll.terminated.sum())
    assert ends > 10
    assert stats.steps_handed == sum(unroll.num_valid for unroll in learner.unrolls)
    assert stats.steps == stats.steps_handed + stats.steps_dropped
    assert (stats.void_rows > 0) == (autoreset == "next_step")


def check_against_journal(unrolls: list[Unroll], journal: str) -> int:
    """Every valid row is a record, no two the same one, and says of itself what the row says of it.

    Gives the number of records that are in no unroll.
    """
    steps = rules.read_journal(journal)
    steps = steps[steps["kind"] == RecordKind.STEP]
    executed = {
        (int(r["nonce"]), int(r["episode"]), int(r["t"]) - 1): (int(r["action"]), float(r["reward"])) for r in steps
    }
    assert len(executed) == len(steps)
    stored = 0
    for unroll in unrolls:
        where = np.argwhere(unroll.valid)
        at = (where[:, 0], where[:, 1])
        now = rules.read_headers(unroll.obs[0][at])
        assert now.intact.all()
        np.testing.assert_array_equal(now.t, unroll.t[at])
        slots, incarnations = unroll.fleet_slots[where[:, 1]], unroll.incarnation[at]
        assert now.seed.tolist() == [
            rebuilt_seed(SEED, slot, incarnation) if incarnation else SEED + slot
            for slot, incarnation in zip(slots.tolist(), incarnations.tolist(), strict=True)
        ]
        rows = zip(now.nonce.tolist(), now.episode.tolist(), now.t.tolist(), strict=True)
        for row, action, reward in zip(rows, unroll.action[0][at].tolist(), unroll.reward[at].tolist(), strict=True):
            assert executed.pop(row) == (action, reward)  # a KeyError is a row that was stored before, or never ran
        stored += len(where)
        check_next(unroll)
    assert stored == sum(unroll.num_valid for unroll in unrolls)
    return len(executed)


def check_next(unroll: Unroll) -> None:
    """What a row is bootstrapped from, or followed by, is the next observation of its own episode."""
    where, before, after = next_obs(unroll)
    at = (where[:, 0], where[:, 1])
    now, following = rules.read_headers(before), rules.read_headers(after)
    assert following.intact.all()
    np.testing.assert_array_equal(following.nonce, now.nonce)
    np.testing.assert_array_equal(following.episode, now.episode)
    np.testing.assert_array_equal(following.t, now.t + 1)
    np.testing.assert_array_equal(following.action, unroll.action[0][at])


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("lag", [0, 2, None])
async def test_every_row_is_executed_once(tmp_path: Path, autoreset: Any, lag: int | None) -> None:
    """Six slots in three lanes that journal what they do: every valid row is one record, every record but the tail."""
    async with EnvServerProcess(tmp_path, envs=[ledger_option(mean_length=6)]) as server:
        async with (
            connect(server.address, env="ledger", num_envs=6, lanes=3, autoreset=autoreset, seed=SEED) as fleet,
            Learner(fleet, NUM_ACTIONS, lag=lag) as learner,
        ):
            await learner.until(lambda: learner.collector.stats.steps >= 600)
        missing = check_against_journal(learner.unrolls, server.journal)
    stats = learner.collector.stats
    assert any(unroll.truncated.any() for unroll in learner.unrolls)
    assert stats.steps_dropped <= missing <= stats.steps_dropped + 6  # 6: under way at the end
    assert stats.lost_steps == 0


@pytest.mark.parametrize("lag", [0, None])
async def test_a_killed_lane_costs_its_steps_in_flight(tmp_path: Path, lag: int | None) -> None:
    """SIGKILL in the middle of an unroll: it is handed over short, its rows are what ran, and the lane is back."""
    async with EnvServerProcess(tmp_path, envs=[ledger_option(mean_length=30)]) as server:
        async with (
            connect(server.address, env="ledger", num_envs=6, lanes=3, seed=SEED) as fleet,
            Learner(fleet, NUM_ACTIONS, lag=lag) as learner,
        ):
            stats = learner.collector.stats
            for times in (1, 2):
                await learner.lanes_have_stepped(50)
                (server.flags / "kill").touch()
                await learner.have_been_lost(times)
                await learner.lanes_have_stepped(32)
        missing = check_against_journal(learner.unrolls, server.journal)
    assert stats.steps_dropped <= missing <= stats.steps_dropped + stats.lost_steps + 6
    assert stats.lost_steps in (2, 4)  # one of the two may have come before its lane's first step
    assert stats.short_unrolls <= 2
    short = [unroll for unroll in learner.unrolls if not unroll.valid[-1].any()]
    assert len(short) == stats.short_unrolls
    assert all(unroll.cut.any() or unroll.ended[unroll.valid.any(axis=1)][-1].all() for unroll in short)


async def test_sync_runs_are_equal_whatever_the_order_of_arrival(tmp_path: Path) -> None:
    """Environments that sleep at random: two runs through a thread and fixed groups give the same bits."""
    runs: list[list[Unroll]] = []
    option = 'dawdling=tests.rpc.dawdling_env:make{"jitter_s":0.003}'
    async with EnvServerProcess(tmp_path, envs=[option]) as server:
        for _ in range(2):
            async with (
                connect(server.address, env="dawdling", num_envs=8, lanes=4, seed=SEED) as fleet,
                Learner(fleet, act_groups=2) as learner,
            ):
                await learner.rounds_are_there(4)
            runs.append([unroll for unrolls in learner.taken[:4] for unroll in unrolls])
    assert len(runs[0]) == 16
    for one, two in zip(*runs, strict=True):
        equal(one, two)
        assert (one.log_prob == -4).all()


async def test_a_slow_lane_slows_no_other(tmp_path: Path) -> None:
    """Async: while a lane of 100 ms a step makes 20 of them, each other lane makes at least five times as many."""
    option = f'dawdling=tests.rpc.dawdling_env:make{{"slow_seeds":[{SEED}]}}'
    async with EnvServerProcess(tmp_path, envs=[option]) as server:
        async with (
            connect(server.address, env="dawdling", num_envs=4, lanes=4, seed=SEED) as fleet,
            Learner(fleet, lag=None) as learner,
        ):
            counts = learner.collector.stats.steps_by_lane
            await learner.until(lambda: counts[0] >= 20)
            made = dict(counts)
        assert all(made[lane] >= 5 * made[0] for lane in (1, 2, 3))
        assert learner.collector.stats.stragglers[0] >= 1
        shares = {lane: [unroll.lane for unroll in learner.unrolls].count(lane) for lane in range(4)}
        assert shares[0] < min(shares[lane] for lane in (1, 2, 3))


async def test_nothing_is_left_of_a_run_that_is_cancelled(tmp_path: Path) -> None:
    """Cancelled in full flight: its thread has ended, and the fleet serves another collector."""
    async with (
        EnvServerProcess(tmp_path, envs=["CartPole-v1"]) as server,
        connect(server.address, env="CartPole-v1", num_envs=8, lanes=2, seed=SEED) as fleet,
    ):
        tasks = asyncio.all_tasks()
        async with Learner(fleet, lag=None) as learner:
            await learner.until(lambda: len(learner.taken) >= 3)
            learner.running.cancel()
        assert learner.running.cancelled()
        assert "asyncrl-inference" not in {thread.name for thread in threading.enumerate()}
        assert asyncio.all_tasks() == tasks
