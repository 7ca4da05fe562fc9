"""The virtual-time loop: repeatable, fast, and loud where a real loop would hang."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from tests.rig.sim_loop import SimDeadlock, SimLivelock, SimLoop, SimTimeOver, run_sim

pytestmark = pytest.mark.sim


async def _race(trace: list[tuple[float, str]]) -> None:
    """Several workers that meet at equal moments, in queues, and at the end of a cancelled group."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str] = asyncio.Queue(2)

    async def put(name: str) -> None:
        for round_number in range(5):
            await asyncio.sleep(0.25)
            await queue.put(f"{name}{round_number}")

    async def wait(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            trace.append((loop.time(), f"cancelled {name}"))

    try:
        async with asyncio.TaskGroup() as group:
            for name in "abcd":
                group.create_task(put(name))
            for name in "wxyz":
                group.create_task(wait(name))
            for _ in range(20):
                item = await queue.get()
                trace.append((loop.time(), item))
            raise ValueError
    except* ValueError:
        pass


def _trace(seed: int, fifo: bool = False) -> list[tuple[float, str]]:
    trace: list[tuple[float, str]] = []
    run_sim(lambda: _race(trace), seed, fifo)
    return trace


def test_a_seed_repeats_its_order() -> None:
    """The same seed gives the same trace, also after memory has moved; other seeds give other orders."""
    first = [_trace(seed) for seed in range(20)]
    ballast = [object() for _ in range(10_000)]
    gc.collect()
    assert [_trace(seed) for seed in range(20)] == first
    assert len({tuple(trace) for trace in first}) > 10
    del ballast


def test_fifo_keeps_the_order_of_asyncio() -> None:
    """With fifo the seed does not matter, and callbacks run in the order of their making."""
    assert _trace(1, fifo=True) == _trace(2, fifo=True)

    async def main() -> list[int]:
        order: list[int] = []
        for number in range(50):
            asyncio.get_running_loop().call_soon(order.append, number)
        await asyncio.sleep(0)
        return order

    assert run_sim(main, 3, fifo=True) == list(range(50))
    assert run_sim(main, 3) != list(range(50))


def test_hours_pass_in_no_time() -> None:
    """Sleeping costs no time of ours and exactly the time asked for of the clock's."""

    async def sleep() -> float:
        for _ in range(1000):
            await asyncio.sleep(3.0)
        return asyncio.get_running_loop().time()

    assert run_sim(sleep, 0) == pytest.approx(3000.0)


def test_a_deadlock_names_who_waits() -> None:
    """Waiting for what nobody will set is an error with the waiting line in it, not a hang."""

    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimDeadlock, match=r"(?s)no timer.*asyncio.Event\(\)\.wait\(\)"):
        run_sim(wait, 0)


def test_a_livelock_is_an_error() -> None:
    """A task that only ever yields to itself does not hang the test."""

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(SimLivelock):
        run_sim(spin, 0)


def test_the_time_limit_ends_a_run() -> None:
    """A run that polls for ever is stopped on the virtual clock."""

    async def poll() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(SimTimeOver):
        run_sim(poll, 0, limit_s=50)


def test_threads_and_sockets_are_refused() -> None:
    """What cannot be simulated says so."""

    async def thread() -> None:
        await asyncio.to_thread(int)

    async def dial() -> None:
        left, right = socket.socketpair()
        try:
            left.setblocking(False)
            await asyncio.get_running_loop().sock_recv(left, 1)
        finally:
            left.close()
            right.close()

    with pytest.raises(RuntimeError, match="no threads"):
        run_sim(thread, 0)
    with pytest.raises(NotImplementedError):
        run_sim(dial, 0)


def test_an_exception_that_nobody_took_fails_the_run() -> None:
    """A callback that raises does not pass in silence."""

    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run_sim(main, 0)


def test_timeouts_and_cancellation_keep_their_meaning() -> None:
    """asyncio.timeout fires at its moment and not before, under every order of the ready queue."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await asyncio.sleep(100)
        return loop.time()

    assert {run_sim(main, seed) for seed in range(50)} == {2.5}


def test_the_private_names_of_asyncio_are_there() -> None:
    """`_ready`, `_run_once`, `_selector` are private to asyncio: this Python still has them."""
    loop = SimLoop(0)
    try:
        assert hasattr(loop, "_ready")
        assert hasattr(loop, "_scheduled")
        assert callable(asyncio.BaseEventLoop._run_once)  # type: ignore[attr-defined]
    finally:
        loop.close()
