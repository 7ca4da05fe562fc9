"""Lane processes by both launchers: their life, their ends, and what is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from asyncrl.errors import ConfigError, ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from envserver.launching import ExecLauncher, Launcher, NurseryLauncher, make_launcher
from envserver.preparing import prepare
from envserver.registry import Registry, parse_env_option
from tests.unit.envserver.watching import gone, is_alive
from tests.unit.envserver.wild_env import (
    ESCAPED,
    EXIT,
    GRANDCHILD,
    HANG,
    KILL_SELF,
    SEGFAULT,
    LaneDriver,
    WildEnv,
    closing_option,
    pids_that,
    registry,
    until,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

BOTH = pytest.mark.parametrize("name", ["nursery", "exec"])


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
    """It left the group and keeps every descriptor of the lane: the socket stays open, the death is known.

    The nursery kills it afterwards; without one nobody does.
    """
    lane = LaneDriver(await launchers(name).start())
    await lane.open("wild")
    grandchild = int((await lane.step(ESCAPED)).obs[0][0, 0])
    os.kill(lane.handle.pid, signal.SIGKILL)
    assert await lane.cause() == "crash(SIGKILL)"
    await lane.handle.wait_closed()
    if name == "exec":
        assert is_alive(grandchild)
        os.kill(grandchild, signal.SIGKILL)
    await gone(grandchild)


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
async def test_the_environments_of_every_lane_are_closed(name: str, tmp_path: Path) -> None:
    """Of an open lane and of one that nobody has opened yet, though another one hangs and is killed."""
    options = [closing_option(tmp_path), f"wild={WildEnv.__module__}:make"]
    launcher = make_launcher(name, Registry(map(parse_env_option, options)))
    opened, hanging = LaneDriver(await launcher.start()), LaneDriver(await launcher.start())
    await opened.open("closing")
    await hanging.open("wild")
    hanging.send_step(HANG)
    await prepare(launcher.start, pb.Open(env="closing", fleet_slots=[0], incarnations=[0]))
    await launcher.close()
    assert len(pids_that(tmp_path, "closed")) == 2
    assert await opened.cause() == "exit(0)"
    assert await hanging.cause() == "crash(SIGKILL)"


@BOTH
async def test_a_start_that_meets_close_is_refused(name: str) -> None:
    """Wherever it was: no process is left of it."""
    for turns in range(6):
        launcher = make_launcher(name, registry())
        starting = asyncio.ensure_future(launcher.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        await launcher.close()
        with contextlib.suppress(ServerRefused):
            lane = await starting
            await lane.wait_closed()
        assert launcher.pids == ()


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
