"""The hand-off between a loop and real threads: order, room, and every way to stop."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable

import pytest

from asyncrl.buffers.handoff import Handoff, HandoffStopped
from asyncrl.errors import LocalProtocolError
from asyncrl.records import Unroll
from tests.unit.buffers.unrolls import an_unroll

LONG_S = 30.0


class Taker:
    """A thread that takes until it is told to stop, and keeps what it took."""

    def __init__(self, handoff: Handoff, pause: Callable[[], float] = lambda: 0.0) -> None:
        self.taken: list[list[Unroll]] = []
        self.last: object = "still taking"
        self._handoff = handoff
        self._pause = pause
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while (unrolls := self._handoff.take()) is not None:
            self.taken.append(unrolls)
            time.sleep(self._pause())
        self.last = unrolls

    async def joined(self) -> None:
        await asyncio.to_thread(self._thread.join, LONG_S)
        assert not self._thread.is_alive()

    @property
    def numbers(self) -> list[int]:
        return [unroll.round for unrolls in self.taken for unroll in unrolls]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():
            await asyncio.sleep(0.001)


async def test_everything_put_is_taken_once_in_order() -> None:
    """Lists of 1 to 4 unrolls from one producer, a consumer that dawdles: the same lists, in the same order."""
    handoff, rng = Handoff(4), random.Random(1)
    taker = Taker(handoff, lambda: rng.random() * 0.001)
    number, sizes = 0, []
    for _ in range(200):
        size = rng.randint(1, 4)
        await handoff.put([an_unroll(number=number + i) for i in range(size)])
        number += size
        sizes.append(size)
        if rng.random() < 0.3:
            await asyncio.sleep(0)
    await until(lambda: len(taker.taken) == len(sizes))
    handoff.stop()
    await taker.joined()
    assert taker.numbers == list(range(number))
    assert [len(unrolls) for unrolls in taker.taken] == sizes
    assert taker.last is None


async def test_many_producers_keep_the_order_of_their_calls() -> None:
    """Eight tasks that put at once, one after the other in line: everything comes, each producer's in its order."""
    handoff = Handoff(2)
    taker = Taker(handoff)

    async def produce(lane: int) -> None:
        for number in range(25):
            await handoff.put([an_unroll(lane, number)])

    async with asyncio.TaskGroup() as group:
        for lane in range(8):
            group.create_task(produce(lane))
    await until(lambda: len(taker.taken) == 200)
    handoff.stop()
    await taker.joined()
    for lane in range(8):
        assert [each.round for (each,) in taker.taken if each.lane == lane] == list(range(25))


async def test_no_more_than_capacity_waits() -> None:
    """Three unrolls have room for two: the third waits for a take. A list that is longer goes when nothing waits."""
    handoff = Handoff(2)
    await handoff.put([an_unroll(number=0)])
    assert handoff.put_nowait([an_unroll(number=1)])
    assert not handoff.put_nowait([an_unroll(number=2)])
    async with asyncio.TaskGroup() as group:
        third = group.create_task(handoff.put([an_unroll(number=2)]))
        await asyncio.sleep(0.02)
        assert not third.done()
        assert handoff.num_waiting == 2
        assert not handoff.put_nowait([])  # somebody is in line
        taken = handoff.take()
    assert taken is not None
    assert [unroll.round for unroll in taken] == [0]
    assert handoff.num_waiting == 2
    handoff.take(), handoff.take()
    await handoff.put([an_unroll(number=number) for number in range(5)])
    assert handoff.num_waiting == 5
    assert not handoff.put_nowait([an_unroll()])


async def test_a_cancelled_put_has_put_nothing() -> None:
    """The first in line gives up: the second gets the room, nothing of the first arrives."""
    handoff = Handoff(1)
    await handoff.put([an_unroll(number=0)])
    async with asyncio.TaskGroup() as group:
        first = group.create_task(handoff.put([an_unroll(number=1)]))
        second = group.create_task(handoff.put([an_unroll(number=2)]))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.sleep(0.01)
        assert not second.done()
        handoff.take()
    taken = handoff.take()
    assert taken is not None
    assert [unroll.round for unroll in taken] == [2]


async def test_one_take_frees_room_for_several() -> None:
    """A list of two is taken: both of those that wait behind it have room, and get it without another take."""
    handoff = Handoff(2)
    await handoff.put([an_unroll(number=0), an_unroll(number=1)])
    async with asyncio.timeout(LONG_S), asyncio.TaskGroup() as group:
        for number in (2, 3):
            group.create_task(handoff.put([an_unroll(number=number)]))
        await asyncio.sleep(0.01)
        handoff.take()
    assert handoff.num_waiting == 2


async def test_stop_frees_both_sides() -> None:
    """A thread that waits to take gets None, a task that waits to put gets an error; so does whoever comes later."""
    empty, full = Handoff(1), Handoff(1)
    taker = Taker(empty)
    await full.put([an_unroll()])
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(_outcome(full, number)) for number in range(3)]
        await asyncio.sleep(0.01)
        threading.Thread(target=full.stop).start()
        empty.stop()
    assert [type(task.result()) for task in waiting] == [HandoffStopped] * 3
    await taker.joined()
    assert taker.last is None
    assert full.take() is None
    assert full.num_waiting == 1  # nobody will take it
    with pytest.raises(HandoffStopped):
        full.put_nowait([an_unroll()])
    full.stop()
    await full.stopped()


async def _outcome(handoff: Handoff, number: int) -> BaseException | None:
    try:
        await handoff.put([an_unroll(number=number)])
    except Exception as error:
        return error
    return None


async def test_the_learners_error_reaches_the_loop() -> None:
    """Stopped with an error by its thread: waiting for it and every put raise that very error, the first one given."""
    handoff, error = Handoff(1), ArithmeticError("NaN in the loss")

    def learner() -> None:
        handoff.stop(error)
        handoff.stop(ValueError("later"))

    async with asyncio.timeout(LONG_S), asyncio.TaskGroup() as group:
        waiting = group.create_task(_stopped(handoff))
        await asyncio.sleep(0)
        threading.Thread(target=learner).start()
    assert waiting.result() is error
    assert await _outcome(handoff, 0) is error
    assert await _stopped(handoff) is error


async def _stopped(handoff: Handoff) -> BaseException | None:
    try:
        await handoff.stopped()
    except Exception as error:
        return error
    return None


async def test_a_stop_after_the_loop_has_gone_harms_nobody() -> None:
    """The learner's thread may outlive the loop by a moment."""
    made: list[Handoff] = []

    async def main() -> None:
        made.append(Handoff(1))

    await asyncio.to_thread(asyncio.run, main())
    made[0].stop()
    assert made[0].take() is None


async def test_room_for_nothing_is_refused() -> None:
    """A capacity of 0 would wait for ever."""
    with pytest.raises(LocalProtocolError, match="room for 0"):
        Handoff(0)
