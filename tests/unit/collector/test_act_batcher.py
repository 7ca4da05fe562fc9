"""The act batcher against policies that record, block or raise: every waiter gets its own rows, or an error."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from asyncrl.collector.act_batcher import ActBatcher, ActingStopped
from asyncrl.collector.joining import ActRequest
from asyncrl.errors import LocalProtocolError
from asyncrl.policy import Acted
from asyncrl.wire.tensors import Array

NEVER_S = 3600.0


class EchoPolicy:
    """Actions are the first obs leaf doubled, so that an answer tells whose rows it was made from."""

    def __init__(self) -> None:
        self.batches: list[list[float]] = []
        self.masks: list[Array | None] = []
        self.threads: set[str] = set()
        self.may_go = threading.Event()
        self.may_go.set()
        self.entered = threading.Semaphore(0)
        self.error: BaseException | None = None

    def act(
        self, obs: Sequence[Array], mask: Array | None, first: Array, carry: Sequence[Array], keys: Array | None
    ) -> Acted:
        self.entered.release()
        self.threads.add(threading.current_thread().name)
        self.batches.append(obs[0].tolist())
        self.masks.append(None if mask is None else mask.copy())
        assert self.may_go.wait(30)
        if self.error is not None:
            raise self.error
        value = first.astype(np.float32)
        return Acted([obs[0] * 2], obs[0] + 0.5, value, len(self.batches), [leaf + 1 for leaf in carry])


def request(lane: int, *values: float) -> ActRequest:
    """One row per value."""
    return ActRequest(lane, [np.array(values, np.float64)], np.zeros(len(values), np.bool_))


async def entered(policy: EchoPolicy) -> None:
    """Returns when the policy has begun one more forward."""
    assert await asyncio.to_thread(policy.entered.acquire, True, 30)


@pytest.mark.parametrize("on_loop", [False, True])
async def test_many_producers_get_their_own_rows_back(on_loop: bool) -> None:
    """16 lanes of different widths submit 60 times each: every row comes back to its lane once, doubled."""
    policy = EchoPolicy()
    rng = np.random.default_rng(0)
    rows = 0

    async def lane(index: int) -> None:
        nonlocal rows
        for turn in range(60):
            values = rng.random(1 + index % 5) + 1000 * index + turn
            first = rng.random(len(values)) < 0.5
            carry = rng.random((len(values), 3))
            acted = await batcher.submit(ActRequest(index, [values], first, None, [carry]))
            np.testing.assert_array_equal(acted.action[0], values * 2)
            np.testing.assert_array_equal(acted.log_prob, values + 0.5)
            np.testing.assert_array_equal(acted.value, first)
            np.testing.assert_array_equal(acted.carry[0], carry + 1)
            rows += len(values)
            if rng.random() < 0.3:
                await asyncio.sleep(0)

    async with (
        ActBatcher(policy, 16, fire_at=4, deadline_s=0.0005, on_loop=on_loop) as batcher,
        asyncio.TaskGroup() as group,
    ):
        for index in range(16):
            group.create_task(lane(index))
    assert sum(map(len, policy.batches)) == rows == 60 * sum(1 + index % 5 for index in range(16))
    assert policy.threads == {"MainThread" if on_loop else "asyncrl-inference"}
    assert any(len(batch) > 5 for batch in policy.batches)  # more rows than one lane has: lanes were joined


async def test_a_batch_is_in_order_of_lane() -> None:
    """However the lanes arrive, the rows of a batch are in order of lane."""
    policy = EchoPolicy()
    async with ActBatcher(policy, 3, fire_at=3, deadline_s=NEVER_S) as batcher:
        answers = [batcher.submit(request(lane, lane, lane + 0.5)) for lane in (2, 0, 1)]
        two, zero, one = await asyncio.gather(*answers)
    assert policy.batches == [[0.0, 0.5, 1.0, 1.5, 2.0, 2.5]]
    assert [part.action[0].tolist() for part in (zero, one, two)] == [[0, 1], [2, 3], [4, 5]]


async def test_nothing_is_fired_before_enough_lanes_wait() -> None:
    """Two of three lanes wait in vain until the third comes: one forward."""
    policy = EchoPolicy()
    async with ActBatcher(policy, 3, fire_at=3, deadline_s=NEVER_S) as batcher:
        answers = [batcher.submit(request(lane, lane)) for lane in (0, 1)]
        await asyncio.sleep(0.02)
        assert policy.batches == []
        assert batcher.num_waiting == 2
        await asyncio.gather(*answers, batcher.submit(request(2, 2)))
    assert len(policy.batches) == 1


async def test_lanes_that_cannot_arrive_are_not_waited_for() -> None:
    """When the third lane is lost the two that wait are fired, and later ones as soon as two wait."""
    policy = EchoPolicy()
    async with ActBatcher(policy, 3, fire_at=3, deadline_s=NEVER_S) as batcher:
        answers = [batcher.submit(request(lane, lane)) for lane in (0, 1)]
        batcher.expect(2, False)
        await asyncio.gather(*answers)
        await asyncio.gather(*(batcher.submit(request(lane, lane)) for lane in (0, 1)))
    assert policy.batches == [[0, 1], [0, 1]]


async def test_a_deadline_fires_what_waits() -> None:
    """One lane of three is answered although the others never come; the next wait has a deadline of its own."""
    policy = EchoPolicy()
    async with ActBatcher(policy, 3, fire_at=3, deadline_s=0.001) as batcher:
        for turn in range(3):
            acted = await batcher.submit(request(1, turn))
            assert acted.action[0].tolist() == [2 * turn]
    assert policy.batches == [[0], [1], [2]]


async def test_arrivals_during_a_forward_gather_in_the_next() -> None:
    """With fire_at 1 lanes never wait for one another, yet those that come during a forward share the next one."""
    policy = EchoPolicy()
    policy.may_go.clear()
    async with ActBatcher(policy, 4, fire_at=1, deadline_s=NEVER_S) as batcher:
        first = batcher.submit(request(3, 3))
        await entered(policy)
        others = [batcher.submit(request(lane, lane)) for lane in (2, 0, 1)]
        policy.may_go.set()
        await asyncio.gather(first, *others)
    assert policy.batches == [[3], [0, 1, 2]]


@pytest.mark.parametrize("on_loop", [False, True])
async def test_an_error_reaches_every_waiter_of_its_batch(on_loop: bool) -> None:
    """All lanes of the failed forward get the policy's own exception; the next forward works."""
    policy = EchoPolicy()
    policy.error = ArithmeticError("NaN")
    async with ActBatcher(policy, 2, fire_at=2, deadline_s=NEVER_S, on_loop=on_loop) as batcher:
        answers = [batcher.submit(request(lane, lane)) for lane in (0, 1)]
        outcomes = await asyncio.gather(*answers, return_exceptions=True)
        assert outcomes == [policy.error] * 2
        policy.error = None
        acted = await asyncio.gather(*(batcher.submit(request(lane, lane)) for lane in (0, 1)))
    assert [part.action[0].tolist() for part in acted] == [[0], [2]]


async def test_an_error_that_futures_refuse_arrives_too() -> None:
    """StopIteration, which no future takes, still ends the wait."""
    policy = EchoPolicy()
    policy.error = StopIteration("gone")
    async with ActBatcher(policy, 1) as batcher:
        with pytest.raises(RuntimeError, match="gone"):
            await batcher.submit(request(0, 1))


async def test_close_fails_the_waiters_and_joins() -> None:
    """Whoever is in a forward and whoever waits for one hears that acting stopped; the thread is gone afterwards."""
    policy = EchoPolicy()
    policy.may_go.clear()
    batcher = ActBatcher(policy, 2, fire_at=1, deadline_s=NEVER_S)
    acting = batcher.submit(request(0, 0))
    await entered(policy)
    waiting = batcher.submit(request(1, 1))
    async with asyncio.TaskGroup() as group:
        closing = group.create_task(batcher.close())
        outcomes = await asyncio.gather(acting, waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ActingStopped] * 2
        assert not closing.done()  # the forward is still running
        policy.may_go.set()
    assert policy.batches == [[0]]
    assert "asyncrl-inference" not in {thread.name for thread in threading.enumerate()}
    await batcher.close()
    with pytest.raises(ActingStopped):
        batcher.submit(request(0, 0))


async def test_acting_on_the_loop_joins_the_lanes_of_one_turn() -> None:
    """Without a thread, lanes submitted in one turn of the loop share a forward; close fails those it never reached."""
    policy = EchoPolicy()
    batcher = ActBatcher(policy, 3, on_loop=True)
    acted = await asyncio.gather(*(batcher.submit(request(lane, lane)) for lane in (2, 0)))
    assert policy.batches == [[0, 2]]
    assert [part.action[0].tolist() for part in acted] == [[4], [0]]
    waiting = batcher.submit(request(1, 1))
    await batcher.close()
    with pytest.raises(ActingStopped):
        await waiting
    await asyncio.sleep(0)
    assert policy.batches == [[0, 2]]


async def test_a_cancelled_waiter_is_dropped_and_may_come_again() -> None:
    """Rows of a lane that stopped waiting are in no forward; its replacement is answered, the other lane too."""
    policy = EchoPolicy()
    policy.may_go.clear()
    async with ActBatcher(policy, 3, fire_at=1, deadline_s=NEVER_S) as batcher:
        first = batcher.submit(request(0, 0))
        await entered(policy)
        lost, other = batcher.submit(request(1, 1)), batcher.submit(request(2, 2))
        lost.cancel()
        again = batcher.submit(request(1, 7))
        policy.may_go.set()
        acted = await asyncio.gather(first, other, again)
    assert policy.batches == [[0], [7, 2]]
    assert [part.action[0].tolist() for part in acted] == [[0], [4], [14]]


async def test_a_waiter_cancelled_during_its_forward_harms_nobody() -> None:
    """The rest of the batch is answered, and the lane may submit again at once."""
    policy = EchoPolicy()
    policy.may_go.clear()
    async with ActBatcher(policy, 2, fire_at=2, deadline_s=NEVER_S) as batcher:
        lost, other = batcher.submit(request(0, 0)), batcher.submit(request(1, 1))
        await entered(policy)
        lost.cancel()
        again = batcher.submit(request(0, 5))
        policy.may_go.set()
        assert (await other).action[0].tolist() == [2]
        batcher.expect(1, False)
        assert (await again).action[0].tolist() == [10]


async def test_submissions_are_bounded() -> None:
    """A lane waits once at a time, and there are no lanes beyond the last."""
    async with ActBatcher(EchoPolicy(), 2, fire_at=2, deadline_s=NEVER_S) as batcher:
        answer = batcher.submit(request(0, 0))
        with pytest.raises(LocalProtocolError, match="already"):
            batcher.submit(request(0, 0))
        for lane in (-1, 2):
            with pytest.raises(LocalProtocolError, match="of 2"):
                batcher.submit(request(lane, 0))
        assert batcher.num_waiting == 1
        answer.cancel()


async def test_a_lane_without_a_mask_allows_everything() -> None:
    """Masked and unmasked lanes share a forward; without any mask the policy sees None."""
    policy = EchoPolicy()
    mask = np.array([[True, False, False]])
    async with ActBatcher(policy, 2, fire_at=2, deadline_s=NEVER_S) as batcher:
        await asyncio.gather(
            batcher.submit(request(0, 0)), batcher.submit(ActRequest(1, [np.ones(1)], np.zeros(1, np.bool_), mask))
        )
        await asyncio.gather(*(batcher.submit(request(lane, lane)) for lane in (0, 1)))
    joined, none = policy.masks
    assert joined is not None
    assert joined.tolist() == [[True, True, True], [True, False, False]]
    assert none is None


@pytest.mark.parametrize("on_loop", [False, True])
async def test_groups_act_alike_in_whatever_order_lanes_arrive(on_loop: bool) -> None:
    """Five lanes in two groups, shuffled arrivals, 40 turns: every group's forwards are the same, in order."""
    seen = []
    for seed in range(3):
        rng, policy = random.Random(seed), EchoPolicy()
        async with ActBatcher(policy, 5, num_groups=2, on_loop=on_loop) as batcher:
            assert [batcher.group_of(lane) for lane in range(5)] == [0, 0, 0, 1, 1]

            async def lane(index: int, batcher: ActBatcher = batcher, rng: random.Random = rng) -> None:
                for turn in range(40):
                    for _ in range(rng.randrange(4)):
                        await asyncio.sleep(0)
                    acted = await batcher.submit(request(index, index + turn / 100))
                    assert acted.action[0].tolist() == [2 * (index + turn / 100)]

            async with asyncio.TaskGroup() as group:
                for index in range(5):
                    group.create_task(lane(index))
        assert all(batch == sorted(batch) for batch in policy.batches)
        seen.append([[batch for batch in policy.batches if len(batch) == size] for size in (3, 2)])
        assert sum(map(len, seen[-1])) == len(policy.batches) == 80
    assert seen[0] == seen[1] == seen[2]


async def test_a_group_waits_for_those_expected_alone() -> None:
    """A lane that is lost holds up its group no longer, one that is cancelled is not in its forward."""
    policy = EchoPolicy()
    async with ActBatcher(policy, 4, num_groups=2) as batcher:
        zero = batcher.submit(request(0, 0))
        lost = batcher.submit(request(1, 1))
        acted = await asyncio.gather(zero, lost)
        assert len(acted) == 2
        lost, two = batcher.submit(request(1, 1)), batcher.submit(request(2, 2))
        lost.cancel()
        batcher.expect(1, False)
        await asyncio.sleep(0.01)
        assert batcher.num_waiting == 2
        batcher.expect(3, False)
        await asyncio.gather(two, batcher.submit(request(0, 5)))
        batcher.expect(1, True)
        waiting = batcher.submit(request(0, 6))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await asyncio.gather(waiting, batcher.submit(request(1, 7)))
    assert policy.batches == [[0, 1], [2], [5], [6, 7]]
    assert policy.threads == {"asyncrl-inference"}


async def test_groups_are_as_equal_as_they_can_be() -> None:
    """No more groups than lanes; neighbours together; sizes differ by one."""
    for lanes, groups in ((1, 2), (2, 2), (7, 3), (64, 2)):
        async with ActBatcher(EchoPolicy(), lanes, num_groups=groups) as batcher:
            of = [batcher.group_of(lane) for lane in range(lanes)]
        sizes = Counter(of)
        assert of == sorted(of)
        assert len(sizes) == min(lanes, groups)
        assert max(sizes.values()) - min(sizes.values()) <= 1


async def test_close_fails_whoever_waits_in_a_group() -> None:
    """A group that was never complete hears that acting stopped."""
    batcher = ActBatcher(EchoPolicy(), 2, num_groups=1)
    waiting = batcher.submit(request(0, 0))
    await batcher.close()
    with pytest.raises(ActingStopped):
        await waiting
    assert batcher.num_waiting == 0
