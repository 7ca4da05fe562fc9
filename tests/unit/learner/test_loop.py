"""The learner's thread, with learners that record, block or raise behind a real hand-off and mailbox."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
import torch
from torch import nn

from asyncrl.buffers.handoff import Handoff
from asyncrl.config import PPOConfig
from asyncrl.errors import LocalProtocolError
from asyncrl.learner.loop import MAX_CALLS, Hang, LearnerFailed, LearnerThread, Standing, ThreadWish, Update
from asyncrl.learner.ppo import PPO
from asyncrl.learner.publishing import Published, mailbox_for
from asyncrl.params import ParamMailbox
from asyncrl.records import Unroll
from tests.unit.learner.unrolls import acted, lanes_of, model_for

CONFIG = PPOConfig(num_envs=4, num_steps=8, total_timesteps=320)
ROUND = lanes_of(acted(model_for(CONFIG), num_steps=8), [2, 2])


class Recorder:
    """Each update adds 1 to the weight. It can be held up or made to raise."""

    def __init__(self) -> None:
        self.model = nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.model.weight.zero_()
        self.seen: list[tuple[list[int], float]] = []
        self.threads: set[str] = set()
        self.may_go = threading.Event()
        self.may_go.set()
        self.began = threading.Semaphore(0)
        self.error: BaseException | None = None

    def update(self, unrolls: Sequence[Unroll], progress: float) -> dict[str, float]:
        self.began.release()
        self.threads.add(threading.current_thread().name)
        assert self.may_go.wait(30)
        if self.error is not None:
            raise self.error
        self.seen.append(([unroll.lane for unroll in unrolls], progress))
        with torch.no_grad():
            self.model.weight.add_(1.0)
        return {"losses/value_loss": 0.5}

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self.began.acquire, True, 30)


class Rig:
    """A learner's thread and both of its ends."""

    def __init__(self, learner: Recorder | PPO, config: PPOConfig, wish: ThreadWish, rounds: int) -> None:
        self.handoff = Handoff(8)
        self.box: ParamMailbox[Published] = mailbox_for(learner.model)
        self.updates: list[Update] = []
        self.published: list[int] = []
        self.changed = asyncio.Event()
        standing = Standing(rounds, 32 * rounds) if rounds else None
        self.thread = LearnerThread(self.handoff, learner, self.box, config, self._told, standing=standing, wish=wish)

    def _told(self, update: Update) -> None:
        self.updates.append(update)
        self.published.append(self.box.version)
        self.changed.set()

    async def until(self, num_updates: int) -> None:
        async with asyncio.timeout(30):
            while len(self.updates) < num_updates:
                self.changed.clear()
                await self.changed.wait()


@contextlib.asynccontextmanager
async def running(
    learner: Recorder | PPO,
    config: PPOConfig = CONFIG,
    wish: ThreadWish | None = None,
    rounds: int = 0,
) -> AsyncIterator[Rig]:
    rig = Rig(learner, config, wish or ThreadWish(), rounds)
    try:
        yield rig
    finally:
        if isinstance(learner, Recorder):
            learner.may_go.set()
        await rig.thread.close()
        assert not any(thread.name == "learner" for thread in threading.enumerate())


def stamped(unroll: Unroll, version: int) -> Unroll:
    return dataclasses.replace(unroll, version=np.full_like(unroll.version, version), valid=unroll.valid.copy())


async def test_rounds_are_published_then_told() -> None:
    """Rounds come in order, in one thread, with the share of the budget behind them; each is published when told of."""
    learner = Recorder()
    async with running(learner) as rig:
        for _ in range(10):
            await rig.handoff.put(ROUND)
        await rig.until(10)
        assert [update.rounds for update in rig.updates] == list(range(1, 11))
        assert [update.steps for update in rig.updates] == [32] * 10
        assert all(version >= update.rounds for version, update in zip(rig.published, rig.updates, strict=True))
        with rig.box.reading() as parcel:
            assert parcel is not None
            assert parcel.version == 10
            assert parcel.payload.tensors[0].item() == 10.0
    assert [lanes for lanes, _ in learner.seen] == [[0, 1]] * 10
    assert [progress for _, progress in learner.seen] == pytest.approx([i / 10 for i in range(10)])
    assert learner.threads == {"learner"}


async def test_a_resumed_run_goes_on_counting() -> None:
    """Versions, and the share of the budget, begin where the run was."""
    learner = Recorder()
    async with running(learner, rounds=7) as rig:
        await rig.handoff.put(ROUND)
        await rig.until(1)
        assert rig.updates[0].rounds == rig.box.version == 8
    assert learner.seen[0][1] == pytest.approx(0.7)


async def test_nothing_is_trained_on_after_the_last_round() -> None:
    """Rounds that lie in the hand-off already are left there; calls are the caller's own affair from then on."""
    learner = Recorder()
    async with running(learner, wish=ThreadWish(last_round=9), rounds=7) as rig:
        for _ in range(4):
            rig.handoff.put_nowait(ROUND)
        await rig.until(2)
        await rig.thread.close()
        assert rig.thread.standing == Standing(9, 9 * 32)
        with pytest.raises(LocalProtocolError):
            rig.thread.call(lambda: 0)
    assert len(learner.seen) == 2


async def test_an_error_reaches_the_loop() -> None:
    """An update that raises ends the hand-off: whoever puts, now or later, gets a typed error with its cause."""
    learner = Recorder()
    learner.error = ZeroDivisionError("nothing to divide by")
    async with running(learner) as rig:
        await rig.handoff.put(ROUND)
        async with asyncio.timeout(30):
            with pytest.raises(LearnerFailed, match="ZeroDivisionError: nothing to divide by") as caught:
                await rig.handoff.stopped()
        assert caught.value.__cause__ is learner.error
        with pytest.raises(LearnerFailed):
            await rig.handoff.put(ROUND)
    assert rig.updates == []
    assert rig.box.version == -1


async def test_calls_run_between_updates() -> None:
    """A call waits for the update that runs, and goes before the next; without data it runs at once."""
    learner = Recorder()
    async with running(learner) as rig:
        async with asyncio.timeout(30):
            assert await rig.thread.call(lambda: threading.current_thread().name) == "learner"
        learner.may_go.clear()
        await rig.handoff.put(ROUND)
        await rig.handoff.put(ROUND)
        await learner.has_begun()
        weight = rig.thread.call(lambda: learner.model.weight.item())
        await asyncio.sleep(0.05)
        assert not weight.done()
        learner.may_go.set()
        async with asyncio.timeout(30):
            assert await weight == 1.0
        await rig.until(2)
        assert learner.seen[1][0] == [0, 1]


async def test_an_error_of_a_call_is_its_callers() -> None:
    """What a call raises is raised where it is awaited; the thread goes on. One that is cancelled disturbs nobody."""
    learner = Recorder()
    async with running(learner) as rig:

        def broken() -> None:
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            await rig.thread.call(broken)
        rig.thread.call(lambda: 1).cancel()
        await rig.handoff.put(ROUND)
        await rig.until(1)


async def test_stopping_ends_after_the_update() -> None:
    """What the thread is in is finished, published and told of; what waits behind it is not begun."""
    learner = Recorder()
    async with running(learner) as rig:
        learner.may_go.clear()
        await rig.handoff.put(ROUND)
        await rig.handoff.put(ROUND)
        await learner.has_begun()
        async with asyncio.TaskGroup() as group:
            closing = group.create_task(rig.thread.close())
            await asyncio.sleep(0.05)
            assert not closing.done()
            learner.may_go.set()
        assert [update.rounds for update in rig.updates] == [1]
        assert rig.box.version == 1
        await rig.thread.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_stopping_while_it_waits_is_no_failure(mode: str) -> None:
    """There is no round, and none is made of what never came."""
    learner, waits = Recorder(), threading.Event()
    async with running(learner, dataclasses.replace(CONFIG, mode=mode)) as rig:
        take = rig.handoff.take

        def watched() -> list[Unroll] | None:
            waits.set()
            return take()

        rig.handoff.take = watched  # type: ignore[method-assign]
        await rig.thread.call(lambda: None)  # after which it looks for data again
        assert await asyncio.to_thread(waits.wait, 30)
        await rig.thread.close()
        assert rig.thread.failure is None
    assert learner.seen == []


@pytest.mark.parametrize("fails", [False, True])
async def test_every_call_is_answered(fails: bool) -> None:
    """Calls that wait when the thread ends, well or badly, are run; later ones are refused."""
    learner = Recorder()
    async with running(learner) as rig:
        learner.may_go.clear()
        learner.error = ValueError("bad") if fails else None
        await rig.handoff.put(ROUND)
        await learner.has_begun()
        waiting = [rig.thread.call(lambda i=i: i) for i in range(MAX_CALLS)]  # type: ignore[misc]
        with pytest.raises(LocalProtocolError, match="calls wait"):
            rig.thread.call(lambda: 0)
        states = [rig.thread.is_running]
        rig.handoff.stop()
        learner.may_go.set()
        async with asyncio.timeout(30):
            assert await asyncio.gather(*waiting) == list(range(MAX_CALLS))
        await rig.thread.close()
        states.append(rig.thread.is_running)
        assert states == [True, False]
        with pytest.raises(LocalProtocolError, match="has ended"):
            rig.thread.call(lambda: 0)


async def test_a_hang_is_told_of_once() -> None:
    """An update that takes many times the median is told of once, while it hangs; one that waits for data is none."""
    hangs: asyncio.Queue[Hang] = asyncio.Queue(8)
    learner = Recorder()
    wish = ThreadWish(hang_floor_s=0.05, on_hang=hangs.put_nowait)
    async with running(learner, wish=wish) as rig:
        for _ in range(5):
            await rig.handoff.put(ROUND)
        await rig.until(5)
        await asyncio.sleep(0.3)
        assert hangs.empty()
        learner.may_go.clear()
        await rig.handoff.put(ROUND)
        async with asyncio.timeout(30):
            hang = await hangs.get()
        assert hang.busy_s > 5 * hang.median_s
        await asyncio.sleep(0.3)
        learner.may_go.set()
        await rig.until(6)
        assert hangs.empty()


async def test_whoever_was_stopped_does_not_hang() -> None:
    """The loop did not turn either while the update took so long: it has until the next look."""
    hangs: asyncio.Queue[Hang] = asyncio.Queue(8)
    learner = Recorder()
    async with running(learner, wish=ThreadWish(hang_floor_s=0.2, on_hang=hangs.put_nowait)) as rig:
        for _ in range(5):
            await rig.handoff.put(ROUND)
            await learner.has_begun()
        await rig.until(5)
        learner.may_go.clear()
        await rig.handoff.put(ROUND)
        await learner.has_begun()
        time.sleep(1)  # as if the whole process were stopped
        await asyncio.sleep(0)  # the look that was due
        learner.may_go.set()
        await rig.until(6)
    assert hangs.empty()


async def test_async_gathers_what_is_fresh() -> None:
    """Unrolls are gathered up to a round's steps, in the order they came; too old ones are left out and counted."""
    config = dataclasses.replace(CONFIG, mode="async", max_lag=2)
    learner = Recorder()
    lanes = [dataclasses.replace(ROUND[0], lane=lane) for lane in range(6)]
    async with running(learner, config, rounds=10) as rig:
        await rig.handoff.put([stamped(lanes[0], 10)])
        await rig.handoff.put([stamped(lanes[1], 7), stamped(lanes[2], 8)])
        await rig.until(1)
        await rig.handoff.put([stamped(lanes[3], 8)])  # 3 versions old by now
        await rig.handoff.put([stamped(lanes[4], 11)])
        await rig.handoff.put([stamped(lanes[5], 9)])
        await rig.until(2)
        counts = rig.thread.staleness
    assert [lanes for lanes, _ in learner.seen] == [[0, 2], [4, 5]]
    assert counts.unrolls_dropped == 2
    assert counts.steps_dropped == 32
    assert [update.steps for update in rig.updates] == [32, 32]


async def test_a_round_in_which_every_lane_was_lost_counts() -> None:
    """In sync mode the fleet waits for the round's number, so a round without a valid row is told of as well."""
    config = dataclasses.replace(CONFIG, update_epochs=1)
    ppo = PPO(model_for(config), config)
    lost = [
        dataclasses.replace(u, valid=u.valid & False, end_rows=u.end_rows[:0], end_obs=[u.end_obs[0][:0]])
        for u in ROUND
    ]
    async with running(ppo, config) as rig:
        await rig.handoff.put(lost)
        await rig.handoff.put(ROUND)
        await rig.until(2)
        assert [update.steps for update in rig.updates] == [0, 32]


async def test_final_lr_is_zero_after_the_last_round() -> None:
    """The last round of the budget is trained at the schedule's last step; 0 comes with its end, not before."""
    config = dataclasses.replace(CONFIG, update_epochs=1)
    ppo = PPO(model_for(config), config)
    async with running(ppo, config) as rig:
        for _ in range(config.num_rounds):
            await rig.handoff.put(ROUND)
        await rig.until(config.num_rounds)
        rates = [update.metrics["charts/learning_rate"] for update in rig.updates]
    expected = [config.learning_rate * (1 - i / config.num_rounds) for i in range(config.num_rounds)]
    assert rates == pytest.approx(expected)
    assert ppo.update(ROUND, 1.0)["charts/learning_rate"] == 0.0


async def test_the_loop_runs_on_during_an_update() -> None:
    """Callbacks run while the learner is in the middle of an update."""
    learner = Recorder()
    async with running(learner) as rig:
        learner.may_go.clear()
        await rig.handoff.put(ROUND)
        await learner.has_begun()
        ticks = 0
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            await asyncio.sleep(0)
            ticks += 1
        assert ticks > 10
        assert not learner.seen
