"""Threads and processes that take turns on one core."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from asyncrl.client.connecting import connect
from asyncrl.client.embedded import EmbeddedServer
from asyncrl.client.fleet import Fleet
from asyncrl.client.one_core import OneCore, Ran, is_crowded
from asyncrl.client.scheduling import Scheduling, scheduled
from envserver.joining import STEPS

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or OneCore.here() is None, reason="there are no cores to choose from"
)


@contextmanager
def own_thread(work: Callable[[threading.Event], object] = threading.Event.wait) -> Iterator[int]:
    """Its number for the kernel. It ends when the event is set."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,))
    thread.start()
    assert thread.native_id is not None
    try:
        yield thread.native_id
    finally:
        ended.set()
        thread.join()


def test_the_core_is_one_that_is_allowed() -> None:
    """One alone is no choice."""
    allowed = os.sched_getaffinity(0)
    found = OneCore.here()
    assert found is not None
    assert found.core in allowed
    with scheduled(Scheduling(core=found.core)):
        assert OneCore.here() is None


async def test_threads_of_others_stay_where_they_are() -> None:
    """Those that were there before; one that was started since moves, and so does the calling one."""
    everywhere = os.sched_getaffinity(0)
    with own_thread() as before:
        core = OneCore(min(everywhere))
        with own_thread() as since, core.shared(), own_thread() as meanwhile:
            assert os.sched_getaffinity(before) == everywhere
            assert [os.sched_getaffinity(each) for each in (since, meanwhile, 0)] == [{core.core}] * 3


async def test_threads_are_put_back() -> None:
    """Also one that was started there, and where what was done there failed."""
    everywhere = os.sched_getaffinity(0)
    core = OneCore(min(everywhere))
    with ExitStack() as threads:
        since = threads.enter_context(own_thread())
        with suppress(ZeroDivisionError), core.shared():
            meanwhile = threads.enter_context(own_thread())
            raise ZeroDivisionError
        assert [os.sched_getaffinity(each) for each in (since, meanwhile, 0)] == [everywhere] * 3


@pytest.mark.parametrize(
    ("threads", "crowded"),
    [
        ([], False),
        ([(0.05, 0.2)], False),  # who hardly runs says nothing
        ([(0.3, 0.004)], False),  # a learner, measured alone
        ([(0.23, 0.19)], True),  # beside two neighbours that are less urgent
        ([(0.5, 0.45), (0.23, 0.19)], True),
        ([(0.5, 0.45), (0.23, 0.01)], False),
    ],
)
def test_those_that_take_turns_are_no_crowd(threads: list[tuple[float, float]], crowded: bool) -> None:
    """Seconds of running and of waiting: whoever waits least says whether somebody else is there."""
    assert is_crowded([Ran(int(run * 1e9), int(wait * 1e9)) for run, wait in threads]) is crowded


def burn(ended: threading.Event) -> None:
    """Of the core where it is, all there is; others of this process may run."""
    while not ended.is_set():
        hashlib.sha256(bytes(1 << 20))


@contextmanager
def neighbour(core: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is busy on that core and nowhere else."""
    code = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def until(core: OneCore, *, is_away: bool) -> None:
    while core.is_away is not is_away:
        await asyncio.sleep(0.05)


async def test_whoever_has_to_wait_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy thread, an idle one and a process that one of them started; the next time they try again."""
    monkeypatch.setattr("asyncrl.client.one_core.LOOK_S", 0.2)
    everywhere = os.sched_getaffinity(0)
    core = OneCore(min(everywhere))
    with own_thread(burn) as busy, own_thread() as idle, neighbour(core.core), core.shared(), own_thread() as new:
        child = await asyncio.create_subprocess_exec("sleep", "60")
        ours = (busy, idle, new, 0, child.pid)
        assert [os.sched_getaffinity(each) for each in ours] == [{core.core}] * 5
        await until(core, is_away=True)
        assert [os.sched_getaffinity(each) for each in ours] == [everywhere] * 5
        child.kill()
        await child.wait()
    assert os.sched_getaffinity(0) == everywhere
    with core.shared():
        assert os.sched_getaffinity(0) == {core.core}


async def test_whoever_left_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them to one core, with what they started before they left, but not what has had all cores since."""
    monkeypatch.setattr("asyncrl.client.one_core.LOOK_S", 0.2)
    monkeypatch.setattr("asyncrl.client.one_core.AWAY_S", 0.2)
    everywhere = os.sched_getaffinity(0)
    core = OneCore(min(everywhere))
    with own_thread(burn) as busy, own_thread() as idle, core.shared():
        follower = await asyncio.create_subprocess_exec("sleep", "60")
        with neighbour(core.core):
            await until(core, is_away=True)
            latecomer = await asyncio.create_subprocess_exec("sleep", "60")
        await until(core, is_away=False)
        assert [os.sched_getaffinity(each) for each in (busy, idle, 0, follower.pid)] == [{core.core}] * 4
        assert os.sched_getaffinity(latecomer.pid) == everywhere
        for child in (follower, latecomer):
            child.kill()
            await child.wait()
    assert os.sched_getaffinity(0) == everywhere


def lanes_of(server: EmbeddedServer) -> list[set[int]]:
    """The cores of each lane."""
    nurseries = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    lanes = [pid for each in nurseries for pid in Path(f"/proc/{each}/task/{each}/children").read_text().split()]
    return [os.sched_getaffinity(int(pid)) for pid in lanes]


async def step(fleet: Fleet, count: int) -> None:
    """The rows of before have been received."""
    for _ in range(count):
        fleet.lanes[0].step([np.zeros(1, np.int64)])
        assert (await fleet.recv()).rows is not None


@pytest.mark.rpc
@pytest.mark.parametrize(("env", "joins"), [("CartPole-v1", True), ("slow=benchmarks.slow_env:SlowCartPole-v1", False)])
async def test_only_brief_steps_join_the_server(env: str, joins: bool) -> None:
    """A lane has all cores while it is built and measured; one whose steps take 2 ms keeps them."""
    everywhere = os.sched_getaffinity(0)
    core = max(everywhere)
    async with EmbeddedServer(env, 1, options={"core": core}) as server:
        threads = [int(each.name) for each in Path(f"/proc/{server.pid}/task").iterdir()]
        assert {frozenset(os.sched_getaffinity(thread)) for thread in threads} == {frozenset({core})}
        async with connect(server.address, env=env.partition("=")[0], num_envs=1) as fleet:
            await fleet.recv()
            await step(fleet, STEPS - 1)
            assert lanes_of(server) == [everywhere]
            await step(fleet, 2)
            assert lanes_of(server) == [{core} if joins else everywhere]
