"""Lane processes by both launchers: their life, their ends, and what is left of them."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from asyncrl.errors import ConfigError, ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from envserver.lane_handle import CLOSE_S, LOG_BYTES
from envserver.launching import ExecLauncher, Launcher, NurseryLauncher, make_launcher
from envserver.nursery_client import NurseryClient
from tests.unit.envserver.wild_env import (
    ESCAPED,
    EXIT,
    FINE,
    GRANDCHILD,
    HANG,
    HANG_IN_C,
    KILL_SELF,
    PRINT,
    SEGFAULT,
    LaneDriver,
    registry,
    until,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

BOTH = pytest.mark.parametrize("name", ["nursery", "exec"])


@pytest_asyncio.fixture
async def launchers() -> AsyncIterator[Callable[[str], Launcher]]:
    made: list[Launcher] = []

    def make(name: str) -> Launcher:
        made.append(make_launcher(name, registry()))
        return made[-1]

    yield make
    for launcher in made:
        await launcher.close()


def is_alive(pid: int) -> bool:
    """Zombies are dead: in a container nobody may reap orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(*pids: int) -> None:
    await until(lambda: not any(map(is_alive, pids)))


def open_descriptors() -> list[str]:
    gc.collect()
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(entry.readlink()).partition(":")[0])
        except FileNotFoundError:
            continue  # the listing's own
    return sorted(links)


# ----------------------------------------------------------------------------------------------------------------- life


@BOTH
async def test_a_lane_opens_resets_and_steps(name: str, launchers: Callable[[str], Launcher]) -> None:
    """CartPole in a process of its own, started by either launcher."""
    launcher = launchers(name)
    lane = LaneDriver(await launcher.start())
    assert launcher.pids == (lane.handle.pid,)
    first = await lane.open("CartPole-v1", slots=3)
    assert first.obs[0].shape == (3, 4)
    rows = await lane.step(0, 1, 0)
    assert rows.rewards.tolist() == [1.0, 1.0, 1.0]
    assert not np.array_equal(rows.obs[0], first.obs[0])


@BOTH
async def test_the_lane_exits_when_its_socket_closes(name: str, launchers: Callable[[str], Launcher]) -> None:
    """Closed while idle: it ends by itself, nobody kills it."""
    lane = LaneDriver(await launchers(name).start())
    await lane.open("CartPole-v1")
    lane.handle.close()
    assert await lane.cause() == "exit(0)"
    await lane.handle.wait_closed()
    assert not is_alive(lane.handle.pid)


@BOTH
async def test_a_closed_lane_that_hangs_is_killed(
    name: str, launchers: Callable[[str], Launcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never reads the end of its socket, so it is killed after a grace."""
    monkeypatch.setattr("envserver.lane_handle.CLOSE_S", CLOSE_S / 20)
    lane = LaneDriver(await launchers(name).start())
    await lane.open("wild")
    lane.send_step(HANG)
    lane.handle.close()
    lane.handle.close()
    assert await lane.cause() == "crash(SIGKILL)"
    await lane.handle.wait_closed()


# ----------------------------------------------------------------------------------------------------------------- ends


@BOTH
@pytest.mark.parametrize(
    ("action", "cause"), [(SEGFAULT, "crash(SIGSEGV)"), (EXIT, "exit(1)"), (KILL_SELF, "crash(SIGKILL)")]
)
async def test_the_cause_of_a_death(name: str, action: int, cause: str, launchers: Callable[[str], Launcher]) -> None:
    """A fault in native code, an exit that the environment wanted, a kill; with what it said before in the log."""
    lane = LaneDriver(await launchers(name).start())
    await lane.open("wild")
    lane.send_step(action)
    assert await lane.cause() == cause
    if action == SEGFAULT:
        log = lane.handle.log_tail()
        assert b"about to read address 0" in log
        assert b"Segmentation fault" in log
        assert b"wild_env.py" in log
    elif action == EXIT:
        assert b"SystemExit: 3" in lane.handle.log_tail()


@BOTH
async def test_a_grandchild_with_the_socket_does_not_delay_the_news(
    name: str, launchers: Callable[[str], Launcher]
) -> None:
    """It left the group and keeps every descriptor of the lane: the socket stays open, the death is known."""
    lane = LaneDriver(await launchers(name).start())
    await lane.open("wild")
    grandchild = int((await lane.step(ESCAPED)).obs[0][0, 0])
    os.kill(lane.handle.pid, signal.SIGKILL)
    assert await lane.cause() == "crash(SIGKILL)"
    assert is_alive(grandchild)
    await lane.handle.wait_closed()
    os.kill(grandchild, signal.SIGKILL)


@BOTH
async def test_grandchildren_die_with_their_lane(name: str, launchers: Callable[[str], Launcher]) -> None:
    """Whether the lane is killed by us, by itself, or ends in peace."""
    launcher = launchers(name)
    for end in ("kill", "crash", "close"):
        lane = LaneDriver(await launcher.start())
        await lane.open("wild")
        grandchild = int((await lane.step(GRANDCHILD)).obs[0][0, 0])
        assert is_alive(grandchild)
        if end == "kill":
            lane.handle.kill()
        elif end == "crash":
            lane.send_step(KILL_SELF)
        else:
            lane.handle.close()
        await lane.cause()
        await gone(grandchild)


@BOTH
async def test_replies_before_the_death_are_delivered_first(name: str, launchers: Callable[[str], Launcher]) -> None:
    """Three steps and a crash, pipelined: when `exited` is set all three replies were delivered."""
    lane = LaneDriver(await launchers(name).start())
    await lane.open("wild")
    kinds: list[int] = []
    lane.handle.on_message = lambda kind, _seq, _body: kinds.append(kind)
    for action in (FINE, FINE, FINE, KILL_SELF):
        lane.send_step(action)
    await lane.cause()
    assert kinds == [pb.STEP_RESULT] * 3


@BOTH
@pytest.mark.parametrize("action", [HANG, HANG_IN_C])
async def test_stacks_of_a_hanging_lane(name: str, action: int, launchers: Callable[[str], Launcher]) -> None:
    """Python that loops, and C code that never gives the GIL back: both are in the log, then it can be killed."""
    lane = LaneDriver(await launchers(name).start())
    await lane.open("wild")
    lane.send_step(action)
    await asyncio.sleep(0.2)  # so that the request is being executed
    lane.handle.dump_stacks()
    wanted = b"in _obey" if action == HANG else b"in hold_the_gil"
    await until(lambda: wanted in lane.handle.log_tail())
    lane.handle.kill()
    assert await lane.cause() == "crash(SIGKILL)"
    lane.handle.dump_stacks()
    lane.handle.kill()


@BOTH
async def test_200_mb_of_output_neither_blocks_nor_stays(name: str, launchers: Callable[[str], Launcher]) -> None:
    """The step that prints them returns, the loop serves another lane meanwhile, and the end of it is kept."""
    launcher = launchers(name)
    noisy, quiet = LaneDriver(await launcher.start()), LaneDriver(await launcher.start())
    await noisy.open("wild")
    await quiet.open("wild")
    noisy.send_step(PRINT)
    for _ in range(50):
        await quiet.step(FINE)
    await noisy.stepped()
    await until(lambda: noisy.handle.log_tail().endswith(b"the last line\n"))
    assert len(noisy.handle.log_tail()) == LOG_BYTES


@BOTH
def test_nothing_outlives_a_killed_parent(name: str) -> None:
    """kill -9 of the server: lanes, grandchildren and nursery are gone, a lane that hangs included."""
    command = [sys.executable, "-m", "tests.unit.envserver.doomed_parent", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids: list[int] = json.loads(parent.stdout.readline())
        assert all(map(is_alive, pids))
        parent.kill()
    asyncio.run(gone(*pids))


@BOTH
async def test_everything_is_given_back(name: str) -> None:
    """Lanes that were closed, killed, or never got a word: no descriptor, process or thread is left of them."""
    before, threads = open_descriptors(), threading.active_count()
    launcher = make_launcher(name, registry())
    lanes = [LaneDriver(await launcher.start()) for _ in range(5)]
    pids = launcher.pids
    await lanes[0].open("CartPole-v1")
    lanes[0].handle.close()
    lanes[1].handle.kill()
    lanes[2].handle.close()
    await launcher.close()
    await launcher.close()
    assert launcher.pids == ()
    assert [lane.handle.exited.done() for lane in lanes] == [True] * 5
    await asyncio.sleep(0)
    assert not any(map(is_alive, pids))
    assert threading.active_count() == threads
    assert [each for each in open_descriptors() if each not in before] == []
    assert len(open_descriptors()) <= len(before) + 1  # the loop's own, made with the first socket
    with pytest.raises(ServerRefused) as refused:
        await launcher.start()
    assert refused.value.code == "DRAINING_NOW"


@BOTH
async def test_a_cancelled_start_leaves_no_process(name: str, launchers: Callable[[str], Launcher]) -> None:
    """Cancelled at any await: what was forked is killed."""
    launcher = launchers(name)
    await launcher.start()
    for turns in range(6):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(launcher.start())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
        if not task.cancelled():
            task.result().kill()
    await until(lambda: len(launcher.pids) <= 1)
    assert len(launcher.pids) == 1


async def test_a_start_cancelled_after_its_answer_leaves_no_process(
    launchers: Callable[[str], Launcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane exists, but the task that wanted it is cancelled before it runs again."""
    launcher = launchers("nursery")
    await launcher.start()
    started = NurseryClient._started

    def cancel_at_once(client: NurseryClient, ticket: int, pid: int, descriptors: list[int]) -> None:
        started(client, ticket, pid, descriptors)
        task.cancel()

    monkeypatch.setattr(NurseryClient, "_started", cancel_at_once)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(launcher.start())
    assert task.cancelled()
    await until(lambda: len(launcher.pids) == 1)


async def test_without_pidfd_the_parents_wait_tells_of_the_death(
    launchers: Callable[[str], Launcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS: a thread waits for each lane."""
    monkeypatch.delattr(os, "pidfd_open")
    lane = LaneDriver(await launchers("exec").start())
    await lane.open("wild")
    grandchild = int((await lane.step(GRANDCHILD)).obs[0][0, 0])
    lane.send_step(SEGFAULT)
    assert await lane.cause() == "crash(SIGSEGV)"
    await gone(grandchild)


async def test_no_descriptors_left_is_a_refusal(
    launchers: Callable[[str], Launcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes on, and the client can try again."""
    launcher = launchers("nursery")
    await launcher.start()

    def fail() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("envserver.lane_handle.socket.socketpair", fail)
    with pytest.raises(ServerRefused, match="Too many open files") as refused:
        await launcher.start()
    assert refused.value.code == "BUSY"
    assert refused.value.retryable


async def test_the_default_is_the_nursery_where_there_can_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere exec; asking for what the system cannot do, or for nonsense, is refused."""
    assert isinstance(make_launcher("auto", registry()), NurseryLauncher)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert isinstance(make_launcher("auto", registry()), ExecLauncher)
    with pytest.raises(ConfigError, match="--launcher exec"):
        make_launcher("nursery", registry())
    with pytest.raises(ConfigError, match="auto, nursery or exec"):
        make_launcher("spawn", registry())
