"""The collector over a fleet in memory: gates, losses, ends, and what is conserved in all of them."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from asyncrl.collector.counts import CollectorState
from asyncrl.collector.finite import NonFiniteRows
from asyncrl.collector.lane_driver import Phase
from asyncrl.errors import ConfigError, LocalProtocolError, ServerRefused
from asyncrl.records import Unroll
from asyncrl.wire.envelope import error_body
from asyncrl.wire.step_rows import EpisodeStats, StepRows
from tests.unit.client.fleet_rig import Rig, sim
from tests.unit.client.toy_server import EPISODE, ToyServer
from tests.unit.collector.collecting import Collecting, collecting


def executed(server: ToyServer) -> list[tuple[int, ...]]:
    return [actions for lane in server.all_lanes for actions in lane.executed]


def check_names(unrolls: list[Unroll]) -> None:
    """No transition twice, no episode with a gap, and the reply of every row is to its own action."""
    rows = Counter[tuple[int, ...]]()
    last: dict[int, tuple[int, ...]] = {}
    for unroll in unrolls:
        np.testing.assert_array_equal(unroll.reward[unroll.valid], unroll.action[0][unroll.valid])
        for t, b in np.argwhere(unroll.valid).tolist():
            slot = int(unroll.fleet_slots[b])
            name = (int(unroll.incarnation[t, b]), int(unroll.episode[t, b]), int(unroll.t[t, b]))
            assert unroll.obs[0][t, b, :2].tolist() == [slot, name[0]]
            assert unroll.obs[0][t, b, 2] % 5 == name[2]
            rows[slot, *name] += 1
            if slot in last and last[slot][:2] == name[:2]:
                assert name[2] == last[slot][2] + 1
            last[slot] = name
    assert set(rows.values()) <= {1}


@pytest.mark.parametrize(("lag", "act_groups"), [(0, 0), (0, 2), (1, 0), (2, 2), (None, 0)])
def test_every_transition_is_in_one_unroll(lag: int | None, act_groups: int) -> None:
    """Lanes are lost again and again: what arrived is in one unroll each, or in one that was dropped at the end."""

    async def main(rig: Rig) -> None:
        collecting = Collecting(rig, lag=lag, act_groups=act_groups)

        async def break_and_learn() -> None:
            for _ in range(4):
                await collecting.learn(2)
                rig.servers[0].lose_lanes("crash(SIGSEGV)")
            await collecting.learn(4)

        await collecting.during(break_and_learn())
        while collecting.take():
            pass
        stats, unrolls = collecting.collector.stats, collecting.unrolls
        check_names(unrolls)
        assert stats.steps == stats.steps_handed + stats.steps_dropped
        assert stats.steps == stats.steps_by_lane.total()
        assert stats.steps_handed == sum(unroll.num_valid for unroll in unrolls)
        assert stats.unrolls == len(unrolls)
        assert stats.lost_lanes == rig.fleet.stats.faults["lane_lost"] >= 4
        assert stats.short_unrolls == sum(not unroll.valid[-1].any() for unroll in unrolls)
        ran = sum(map(len, executed(rig.servers[0])))
        assert stats.steps <= ran <= stats.steps + stats.lost_steps + 4  # 4: under way when collection stopped
        for unrolls in collecting.taken:
            assert lag is not None or len(unrolls) == 1

    collecting(main, seeds=5, lanes=4)


def test_the_last_row_of_a_lost_lane_is_cut() -> None:
    """Its next observation is the last that arrived; the replacement's unroll begins with a first observation."""

    async def main(rig: Rig) -> None:
        collecting = Collecting(rig, num_steps=9)

        async def lose_in_the_middle() -> None:
            while collecting.collector.stats.steps < 12:
                await asyncio.sleep(0.0005)
            rig.servers[0].lose_lanes("hang")
            await collecting.learn(2)

        await collecting.during(lose_in_the_middle())
        lost, back = collecting.taken
        for unroll in lost:
            (ends,) = np.nonzero(unroll.valid[:, 0])
            last = int(ends[-1])
            assert last < 8
            running = ~unroll.terminated[last]
            assert (unroll.cut[last] == running).all()
            np.testing.assert_array_equal(unroll.end_obs[0], unroll.obs[0][last + 1][running])
            assert unroll.end_rows.tolist() == [[last, b] for b in np.flatnonzero(running)]
        for unroll in back:
            assert unroll.first[0].all()
            assert (unroll.incarnation == 1).all()
            assert unroll.valid.all()
            assert unroll.round == 1

    collecting(main)


TWO_SERVERS = [{"address": "toy:1", "capacity": 2}, {"address": "toy:2", "capacity": 2}]


def test_rounds_go_on_without_a_lane_that_stays_away() -> None:
    """One of two servers is down for long: rounds of the other lane alone, then rounds of both again."""

    async def main(rig: Rig) -> None:
        collecting = Collecting(rig, act_groups=1)

        async def lose_for_long() -> None:
            await collecting.learn(2)
            rig.servers[1].die()
            await collecting.learn(6)
            rig.servers[1].restart("boot-2")
            while len(collecting.taken[-1]) < 2:
                await collecting.learn(1)
            await collecting.learn(2)

        await collecting.during(lose_for_long())
        sizes = [len(unrolls) for unrolls in collecting.taken]
        assert sizes[:2] == sizes[-3:-1] == [2, 2]
        assert sizes.count(1) >= 3
        assert [unrolls[0].round for unrolls in collecting.taken] == list(range(len(sizes)))
        check_names(collecting.unrolls)

    collecting(main, servers=TWO_SERVERS)


def test_a_round_in_which_nothing_happened_is_not_waited_for() -> None:
    """Both lanes are lost before their first reply: the one that is back first begins as soon as the other is lost."""

    async def main(rig: Rig) -> None:
        collecting = Collecting(rig)
        while len(rig.fleet._arrivals) < 2:  # both lanes have been reset
            await asyncio.sleep(0.001)
        for server in rig.servers:
            server.hold_replies = True

        async def lose_both_early() -> None:
            while not all(lane.phase is Phase.STEPPING for lane in collecting.collector._drivers):
                await asyncio.sleep(0.0001)
            rig.servers[0].hold_replies = False
            rig.servers[0].lose_lanes("hang")
            await asyncio.sleep(5)
            stats = collecting.collector.stats
            assert (stats.steps, stats.lost_lanes) == (0, 1)
            rig.servers[1].lose_lanes("hang")  # its replacement is held up as well
            await collecting.learn(1)
            assert [(unroll.lane, unroll.round) for unroll in collecting.unrolls] == [(0, 0)]

        await collecting.during(lose_both_early())

    collecting(main, servers=TWO_SERVERS)


def test_lanes_that_wait_for_room_are_not_waited_for() -> None:
    """Async, forwards of two lanes: when one lane's unroll finds no room, the other goes on without the deadline."""

    async def main(rig: Rig) -> None:
        collecting = Collecting(rig, capacity=1, lag=None, fire_at=2, act_deadline_s=1000.0)

        async def watch() -> None:
            await asyncio.sleep(5)
            assert len(executed(rig.servers[0])) == 3 * 7  # one was taken in, and each lane holds another
            await collecting.learn(12, within_s=900.0, train=False)

        await collecting.during(watch())
        assert {unroll.lane for unroll in collecting.unrolls} == {0, 1}

    collecting(main)


def test_sync_runs_are_equal_bit_for_bit() -> None:
    """Six schedules, in which lanes arrive in every order: the same unrolls, with two groups, one, or one a lane."""
    for groups in (1, 2, 4):
        runs: list[list[Unroll]] = []

        async def main(rig: Rig, groups: int = groups, runs: list[list[Unroll]] = runs) -> None:
            collecting = Collecting(rig, act_groups=groups)
            await collecting.during(collecting.learn(4))
            assert set(collecting.policy.sizes) == {8 // groups}
            runs.append(collecting.unrolls)

        sim(main, seeds=6, lanes=4, num_envs=8)
        for other in runs[1:]:
            assert len(other) == len(runs[0]) == 16
            for one, two in zip(runs[0], other, strict=True):
                equal(one, two)


def equal(one: Unroll, two: Unroll) -> None:
    """Bit for bit, every field."""
    for name in Unroll.__slots__:
        left, right = getattr(one, name), getattr(two, name)
        if not isinstance(left, list):
            left, right = [left], [right]
        for a, b in zip(left, right, strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), name


def test_noise_does_not_depend_on_who_acts_together() -> None:
    """Groups of one lane and groups of all: other forwards, the same actions."""
    actions: list[list[list[int]]] = []
    for groups in (1, 4):

        async def main(rig: Rig, groups: int = groups) -> None:
            collecting = Collecting(rig, act_groups=groups)
            await collecting.during(collecting.learn(3))
            actions.append([unroll.action[0].tolist() for unroll in collecting.unrolls])

        sim(main, seeds=1, lanes=4, num_envs=8)
    assert actions[0] == actions[1]


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_collection_stays_within_its_lag(lag: int) -> None:
    """A learner that takes but never trains gets lag + 1 rounds; each round trained on is one round more."""

    async def main(rig: Rig) -> None:
        collecting = Collecting(rig, lag=lag)

        async def watch() -> None:
            await collecting.learn(lag + 1, train=False)
            await asyncio.sleep(5)
            assert not collecting.handoff.num_waiting
            assert collecting.collector.stats.steps == (lag + 1) * 4 * 7
            collecting.collector.trained(1)
            await asyncio.sleep(5)
            assert collecting.collector.stats.steps == (lag + 2) * 4 * 7
            assert collecting.take()

        await collecting.during(watch())
        assert [[unroll.round for unroll in unrolls] for unrolls in collecting.taken] == [
            [number] * 2 for number in range(lag + 2)
        ]

    collecting(main)


def test_a_full_hand_off_pauses_the_lanes() -> None:
    """Async, room for two: each lane holds one unroll that found no room, and its environments stand still."""

    async def main(rig: Rig) -> None:
        collecting = Collecting(rig, capacity=2, lag=None)

        async def watch() -> None:
            await asyncio.sleep(5)
            stats, server = collecting.collector.stats, rig.servers[0]
            assert (stats.unrolls, len(executed(server))) == (2, 4 * 7)
            assert collecting.take()
            await asyncio.sleep(5)
            assert (stats.unrolls, len(executed(server))) == (3, 5 * 7)
            await collecting.learn(6, train=False)
            assert stats.learner_s > 0

        await collecting.during(watch())
        check_names(collecting.unrolls)

    collecting(main)


def test_a_resumed_run_goes_on() -> None:
    """Keys go on where they were, also for other lanes; rounds and steps count on; the carry is there."""

    async def main(rig: Rig) -> None:
        first = Collecting(rig)
        await first.during(first.learn(2))
        states.append(first.collector.state())
        keys.append(first.policy.keys)

    async def again(rig: Rig) -> None:
        second = Collecting(rig, state=states[-1])
        await second.during(second.learn(1))
        assert [unroll.round for unroll in second.unrolls] == [state.round]
        assert second.collector.stats.steps >= state.steps + 4 * 7
        assert not set(second.policy.keys) & set(keys[-1])
        np.testing.assert_array_equal(second.unrolls[0].carry[0], state.carry[0])

    states: list[CollectorState] = []
    keys: list[list[int]] = []
    collecting(main, seeds=1)
    (state,) = states
    assert state.steps >= 2 * 4 * 7
    assert (state.act_steps >= 14).all()
    assert state.carry[0].shape == (4, 2)
    collecting(again, seeds=2, lanes=1)


def test_episodes_are_told_with_the_step_they_ended_at() -> None:
    """Statistics of a reply reach the callback with fleet slots and the steps there were, that reply included: with
    rounds those of all lanes up to the same row, else those that have arrived."""

    def with_stats(rows: StepRows) -> None:
        one = np.array([1])
        rows.stats = EpisodeStats(one.astype("<u4"), one * 2.5, (one * 9).astype("<u4"), one.astype("<f4"))

    async def main(rig: Rig, lag: int | None, steps: tuple[int, ...]) -> None:
        collecting = Collecting(rig, state=CollectorState.fresh(4, [np.zeros((4, 2))]), lag=lag)
        rig.servers[0].rebuild.append(with_stats)
        await collecting.during(collecting.learn(1))
        (ended,) = collecting.episodes
        assert ended.fleet_slots.tolist() in ([1], [3])
        assert (ended.returns.tolist(), ended.lengths.tolist(), ended.times.tolist()) == ([2.5], [9], [1.0])
        assert ended.steps in steps

    collecting(partial(main, lag=0, steps=(4,)))
    collecting(partial(main, lag=None, steps=(2, 4)))


class Always(list[Callable[[StepRows], None]]):
    """Changes of every reply, where others are of the next one alone."""

    def clear(self) -> None:
        pass


@pytest.mark.parametrize("lag", [0, 1, None])
def test_environments_that_give_nothing_but_nan_end_it(lag: int | None) -> None:
    """With NaN left out no round comes of them, and no lane waits for another: said after a hundred unrolls of each
    lane, and not while one step now and then is left."""

    def spoil(rows: StepRows) -> None:
        rows.rewards = np.full_like(rows.rewards, np.nan)

    async def main(rig: Rig) -> None:
        collecting = Collecting(rig, lag=lag, num_steps=2, nonfinite="cut")
        rig.servers[0].rebuild = Always([spoil])
        with pytest.raises(NonFiniteRows, match="nothing but NaN or infinity: 200 unrolls in a row"):
            async with asyncio.timeout(1000):
                await collecting.collector.run()
        stats = collecting.collector.stats
        assert stats.nonfinite_steps == 200 * 2 * 2
        games = [lane.num_slots * (1 + len(lane.executed) // EPISODE) for lane in rig.servers[0].all_lanes]
        assert 0 < stats.episodes_started <= sum(games)  # no memory of a row that is left out is no new game
        assert not collecting.taken

    async def hardly(rig: Rig) -> None:
        collecting = Collecting(rig, lag=lag, num_steps=2, nonfinite="cut")
        replies = itertools.count(1)
        rig.servers[0].rebuild = Always([lambda rows: None if next(replies) % 100 == 0 else spoil(rows)])
        await collecting.during(collecting.learn(5, within_s=1000.0))

    collecting(main, seeds=2)
    collecting(hardly, seeds=2)


def test_an_error_of_the_policy_ends_the_run() -> None:
    """It is raised by `run` itself, not in a group, and nothing waits any more."""

    async def main(rig: Rig) -> None:
        collecting = Collecting(rig)
        collecting.policy.error = ArithmeticError("NaN")
        with pytest.raises(ArithmeticError, match="NaN"):
            await collecting.collector.run()

    collecting(main)


def test_an_error_of_the_fleet_ends_the_run() -> None:
    """A request that the server refuses is the policy's mistake: `run` raises what the server said."""

    async def main(rig: Rig) -> None:
        collecting = Collecting(rig)
        rig.servers[0].refuse_next = error_body("BAD_ACTION", "no such action")
        with pytest.raises(ServerRefused, match="no such action"):
            await collecting.collector.run()

    collecting(main)


def test_an_error_of_the_learner_ends_the_run() -> None:
    """The hand-off is stopped with it while lanes step."""

    async def main(rig: Rig) -> None:
        collecting, error = Collecting(rig, lag=None), ArithmeticError("NaN in the loss")
        asyncio.get_running_loop().call_later(0.1, collecting.handoff.stop, error)
        with pytest.raises(ArithmeticError, match="in the loss"):
            await collecting.collector.run()
        assert collecting.collector.stats.steps > 0

    collecting(main)


@pytest.mark.parametrize("lag", [0, None])
def test_a_stop_of_the_hand_off_ends_the_run(lag: int | None) -> None:
    """The learner has had enough: `run` returns, whether lanes step, wait at a gate, or wait for room."""

    async def main(rig: Rig) -> None:
        for wait_s in (0.01, 5.0):
            collecting = Collecting(rig, capacity=1, lag=lag)
            asyncio.get_running_loop().call_later(wait_s, collecting.handoff.stop)
            await collecting.collector.run()
            stats = collecting.collector.stats
            assert stats.steps == stats.steps_handed + stats.steps_dropped
            return

    collecting(main)


def test_cancellation_leaves_nothing() -> None:
    """Cancelled in the middle of stepping: no task is left, and the fleet is open."""

    async def main(rig: Rig) -> None:
        before = asyncio.all_tasks()
        collecting = Collecting(rig, lag=None)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(collecting.collector.run())
            await collecting.learn(3)
            running.cancel()
        assert running.cancelled()
        assert asyncio.all_tasks() == before
        assert rig.fleet.lanes_up == 2
        with pytest.raises(LocalProtocolError, match="runs once"):
            await collecting.collector.run()

    collecting(main)


def test_what_cannot_be_collected_is_refused() -> None:
    """Slots that nobody resets, and a state of another number of slots."""

    async def main(rig: Rig) -> None:
        with pytest.raises(ConfigError, match="disabled"):
            Collecting(rig)

    async def other(rig: Rig) -> None:
        with pytest.raises(ConfigError, match="3 slots for 4"):
            Collecting(rig, state=CollectorState.fresh(3))

    collecting(main, seeds=1, autoreset="disabled")
    collecting(other, seeds=1)
