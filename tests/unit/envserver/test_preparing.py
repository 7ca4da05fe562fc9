"""Warm berths and probes, with lane processes that live in memory."""

from __future__ import annotations

import asyncio

import pytest

from asyncrl.errors import DeadlineExceeded, LaneLost, ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import error_body
from envserver import preparing
from envserver.lane_socket import BROKEN, PREPARE, PREPARED
from envserver.preparing import WarmPool, berths, prepare, probe
from tests.unit.envserver.memory_lane import SPEC, MemoryBackend, settle

PREPARED_BODY = pb.Opened(spec=SPEC.to_proto(), spec_hash=SPEC.hash()).SerializeToString()


class Starter:
    """Starts in-memory processes that answer PREPARE as told: a kind and a body, "die", or "hang"."""

    def __init__(self, answer: tuple[int, bytes] | str = (PREPARED, PREPARED_BODY)) -> None:
        self.answer = answer
        self.made: list[MemoryBackend] = []

    async def __call__(self) -> MemoryBackend:
        backend = MemoryBackend()
        self.made.append(backend)
        answer = self.answer
        loop = asyncio.get_running_loop()

        def send(kind: int, seq: int, body: bytes, deadline_ms: int = 0) -> None:
            assert kind == PREPARE
            if isinstance(answer, tuple):
                loop.call_soon(lambda: backend.on_message(answer[0], seq, answer[1]))
            elif answer == "die":
                loop.call_soon(backend.die, "crash(SIGSEGV)")

        backend.send = send  # type: ignore[method-assign]
        return backend


async def test_probe_gives_the_process_back() -> None:
    """A probe brings the spec and leaves no process."""
    start = Starter()
    opened = await probe(start, "toy", b"")
    assert opened.spec_hash == SPEC.hash()
    assert start.made[0].closed


async def test_news_of_the_building_are_no_answer() -> None:
    """A process tells how far it is before it says what it has built."""
    start = Starter("hang")
    preparation = asyncio.create_task(prepare(start, pb.Open(env="toy")))
    await settle()
    start.made[0].on_message(pb.EVENT, 0, pb.Event(kind=pb.BUILDING, step=1, total=4).SerializeToString())
    await settle()
    assert not preparation.done()
    start.made[0].on_message(PREPARED, 0, PREPARED_BODY)
    backend, opened = await preparation
    assert (backend, opened.spec_hash) == (start.made[0], SPEC.hash())


async def test_failures_are_typed_and_leave_no_process() -> None:
    """An error of the environment, a death and a hang while building: each its own error, each process closed."""
    for answer, expected in (
        ((pb.ERROR, error_body("BUILD_FAILED", "no ROM")), ServerRefused),
        ((BROKEN, b"a mask over 7"), LaneLost),
        ("die", LaneLost),
        ("hang", DeadlineExceeded),
    ):
        start = Starter(answer)
        with pytest.raises(expected):
            await prepare(start, pb.Open(env="toy"), timeout_s=0.05)
        assert start.made[0].closed


async def test_a_lent_berth_is_prepared_again() -> None:
    """A berth is lent once, and prepared again when its lane has closed."""
    start = Starter()
    pool = WarmPool(start, berths(["toy"], 5, 2))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(pool.run())
        await settle(50)
        assert len(start.made) == 2
        taken = pool.take("toy", {}, 3)
        assert taken is not None and taken[0] is start.made[0]
        assert pool.take("toy", {}, 3) is None
        assert pool.take("toy", {"size": 1}, 2) is None
        assert pool.take("other", {}, 2) is None
        pool.give_back(taken[1])
        await settle(50)
        assert len(start.made) == 3
        assert pool.take("toy", {}, 3) is not None
        running.cancel()
    pool.close()
    assert start.made[1].closed


async def test_a_prepared_process_that_died_is_not_lent() -> None:
    """Death while waiting empties the berth; the next fill prepares another one."""
    start = Starter()
    pool = WarmPool(start, berths(["toy"], 1, 1))
    await pool.fill()
    start.made[0].die("crash(SIGKILL)")
    assert pool.take("toy", {}, 1) is None
    await pool.fill()
    taken = pool.take("toy", {}, 1)
    assert taken is not None and taken[0] is start.made[1]


async def test_a_berth_that_comes_back_during_a_fill_is_not_forgotten() -> None:
    """Its lane closes while the fill, which has passed it, waits for another one: it is prepared afterwards."""
    start = Starter("hang")
    pool = WarmPool(start, berths(["toy"], 5, 2))
    first, second = pool._berths
    first.lent = True
    async with asyncio.TaskGroup() as group:
        running = group.create_task(pool.run())
        await settle()
        assert len(start.made) == 1  # for the second
        start.answer = (PREPARED, PREPARED_BODY)
        pool.give_back(first)
        start.made[0].on_message(PREPARED, 0, PREPARED_BODY)
        await settle(50)
        assert second.backend is start.made[0]
        assert first.backend is start.made[1]
        running.cancel()


async def test_a_berth_that_never_builds_is_tried_for_ever() -> None:
    """However often it has failed, the pool goes on waiting for the next try."""
    pool = WarmPool(Starter((pb.ERROR, error_body("BUILD_FAILED", "no ROM"))), berths(["toy"], 1, 1))
    pool._berths[0].failures = 5000
    async with asyncio.TaskGroup() as group:
        running = group.create_task(pool.run())
        await settle(50)
        assert pool._berths[0].failures == 5001
        assert not running.done()
        running.cancel()


async def test_a_berth_that_never_builds_keeps_no_other_waiting() -> None:
    """It is not tried again before its time, and one that comes back meanwhile is prepared at once."""
    start = Starter((pb.ERROR, error_body("BUILD_FAILED", "no ROM")))
    pool = WarmPool(start, berths(["broken", "toy"], 2, 2))
    broken, toy = pool._berths
    toy.lent = True
    async with asyncio.TaskGroup() as group:
        running = group.create_task(pool.run())
        await settle(50)
        assert (broken.failures, len(start.made)) == (1, 1)
        start.answer = (PREPARED, PREPARED_BODY)
        pool.give_back(toy)
        await settle(50)
        assert toy.backend is start.made[1]
        assert (broken.backend, len(start.made)) == (None, 2)
        broken.retry_at = 0.0
        pool.give_back(toy)
        await settle(50)
        assert broken.backend is start.made[2]
        assert broken.failures == 0
        running.cancel()


async def test_a_berth_that_was_not_built_is_tried_again_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without anybody who gives one back."""
    monkeypatch.setattr(preparing, "LONGEST_WAIT_S", 0.05)
    start = Starter((pb.ERROR, error_body("BUILD_FAILED", "no ROM")))
    pool = WarmPool(start, berths(["toy"], 1, 1))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(pool.run())
        await settle(50)
        start.answer = (PREPARED, PREPARED_BODY)
        async with asyncio.timeout(10):
            while pool._berths[0].backend is None:
                await asyncio.sleep(0.01)
        running.cancel()
    assert len(start.made) == 2


@pytest.mark.parametrize(("num_envs", "lanes"), [(1, 1), (7, 3), (64, 6), (5, 5)])
def test_berths_hold_the_capacity(num_envs: int, lanes: int) -> None:
    """The sizes sum to the capacity and differ by one at most; the aliases take turns."""
    made = berths(["a", "b"], num_envs, lanes)
    sizes = [berth.slots for berth in made]
    assert sum(sizes) == num_envs and max(sizes) - min(sizes) <= 1
    assert [berth.env for berth in made] == [("a", "b")[i % 2] for i in range(lanes)]
