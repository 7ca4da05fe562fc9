"""The nursery: what it keeps from its lanes, how light it is, and what its own death costs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from envserver.child_process import start_nursery
from envserver.launching import NurseryLauncher
from envserver.registry import Registry, parse_env_option
from tests.unit.envserver.watching import descriptors, gone, is_alive, pss_kib, status
from tests.unit.envserver.wild_env import DAEMON, ESCAPED, KILL_SELF, PLAYER, STRANGER, LaneDriver

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the nursery is for Linux")

NUM_LANES = 64


async def test_a_lane_inherits_no_socket(launcher: NurseryLauncher) -> None:
    """Neither of the server, nor the nursery's control socket, nor those of the lanes before it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.set_inheritable(True)
        lanes = [LaneDriver(await launcher.start()) for _ in range(3)]
        for lane in lanes:
            await lane.open("CartPole-v1")
            links = list(descriptors(lane.handle.pid).values())
            assert sum(link.startswith("socket:") for link in links) == 1, links
            assert len({link for link in links if link.startswith("pipe:")}) == 1, links  # its log


def test_the_nursery_stays_light() -> None:
    """Neither grpc, torch nor an event loop in the nursery, no simulator in the server."""
    checks = {
        "envserver.nursery": ("grpc", "torch", "asyncio", "gymnasium"),
        "envserver.launching": ("gymnasium", "ale_py", "torch", "envserver.lane_process"),
    }
    for module, heavy in checks.items():
        code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert ran.stdout.strip() == "[]", (module, ran.stdout)


def test_a_nursery_without_its_server_ends_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    """The control socket's end is how it is told to end: nothing that anybody should read about."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        nursery = start_nursery(theirs.fileno(), Registry([parse_env_option("CartPole-v1")]), [])
        theirs.close()
        assert json.loads(ours.recv(4096)) == {"ready": True}
    assert nursery.wait(20) == 0
    assert capfd.readouterr().err == ""


async def test_a_module_that_cannot_be_imported_stops_only_its_own_lanes() -> None:
    """The nursery serves the other aliases; who asks for this one is told."""
    launcher = NurseryLauncher(
        Registry([parse_env_option("bad=no_such_module.at_all:make"), parse_env_option("CartPole-v1")])
    )
    try:
        with pytest.raises(AssertionError, match="no_such_module"):
            await LaneDriver(await launcher.start()).open("bad")
        await LaneDriver(await launcher.start()).open("CartPole-v1")
    finally:
        await launcher.close()


@pytest.mark.parametrize("end", ["kill", "crash", "close", "launcher"])
async def test_what_left_the_group_dies_with_its_lane(end: str, launcher: NurseryLauncher) -> None:
    """By fork, by exec, and as a daemon: in sessions of their own, one of them without a parent."""
    lane = LaneDriver(await launcher.start())
    await lane.open("wild")
    pids = [int((await lane.step(way)).obs[0][0, 0]) for way in (ESCAPED, PLAYER, DAEMON, STRANGER)]
    assert all(map(is_alive, pids))
    if end == "kill":
        lane.handle.kill()
    elif end == "crash":
        lane.send_step(KILL_SELF)
    elif end == "close":
        lane.handle.close()
    else:
        await launcher.close()
        assert not any(map(is_alive, pids))
    await gone(*pids)


async def test_a_daemon_lives_as_long_as_its_lane(launcher: NurseryLauncher) -> None:
    """The death of another lane does nothing to it; what has no marker goes with the last lane."""
    doomed, other = LaneDriver(await launcher.start()), LaneDriver(await launcher.start())
    for lane in (doomed, other):
        await lane.open("wild")
    daemon = int((await other.step(DAEMON)).obs[0][0, 0])
    stranger = int((await doomed.step(STRANGER)).obs[0][0, 0])
    player = int((await doomed.step(PLAYER)).obs[0][0, 0])
    doomed.handle.kill()
    await gone(player)
    assert is_alive(daemon)
    assert is_alive(stranger)
    other.handle.kill()
    await gone(daemon, stranger)


IMPORTED = """
import subprocess, gymnasium
stranger = subprocess.Popen(["sleep", "60"], env={})
parent = subprocess.Popen(["sh", "-c", "setsid sleep 60 >&2 & echo $!; wait"], stdout=subprocess.PIPE)
with open("PIDS", "w") as file:
    print(stranger.pid, parent.pid, int(parent.stdout.readline()), file=file)

def make():
    return gymnasium.make("CartPole-v1")
"""


async def test_what_the_imports_started_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It belongs to no lane: a child without a marker, and one that is orphaned later, outlive lanes and nursery."""
    file = tmp_path / "pids"
    (tmp_path / "starting.py").write_text(IMPORTED.replace("PIDS", str(file)))
    monkeypatch.syspath_prepend(tmp_path)
    launcher = NurseryLauncher(Registry([parse_env_option("starting=starting:make")]))
    try:
        lane = LaneDriver(await launcher.start())
        await lane.open("starting")
        stranger, parent, orphan = map(int, file.read_text().split())
        os.kill(parent, signal.SIGKILL)
        await gone(parent)
        lane.handle.kill()
        await lane.handle.wait_closed()
        await launcher.close()
        assert is_alive(stranger)
        assert is_alive(orphan)
    finally:
        await launcher.close()
        for pid in file.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


async def test_64_lanes_start_within_two_seconds(launcher: NurseryLauncher) -> None:
    """And share the memory of what the nursery imported. The bound is the promise; the figures are printed."""
    loop = asyncio.get_running_loop()
    await launcher.start()
    began = loop.time()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        starts = [group.create_task(launcher.start()) for _ in range(NUM_LANES)]
    started = loop.time() - began
    lanes = [LaneDriver(start.result()) for start in starts]
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for lane in lanes:
            group.create_task(lane.open("CartPole-v1"))
    opened = loop.time() - began
    assert launcher.nursery_pid is not None
    pss = sum(pss_kib(lane.handle.pid) for lane in lanes) // 1024
    rss = status(launcher.nursery_pid)["VmRSS"]
    print(f"{NUM_LANES} lanes forked in {started:.2f} s, open in {opened:.2f} s, PSS {pss} MiB, nursery RSS {rss}")
    assert len(set(launcher.pids)) == NUM_LANES + 1
    assert all(map(is_alive, launcher.pids))
    assert pss < 20 * NUM_LANES  # an interpreter with these modules is more than twice as large
    closing = loop.time()
    await launcher.close()
    print(f"closed in {loop.time() - closing:.2f} s")
