"""The nursery: what it keeps from its lanes, how light it is, and what its own death costs."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from envserver.child_process import cause_of, child_environment
from envserver.launching import NurseryLauncher
from envserver.registry import Registry, parse_env_option
from tests.unit.envserver.test_launching import gone, is_alive
from tests.unit.envserver.wild_env import HANG, LaneDriver, registry

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the nursery is for Linux")

NUM_LANES = 64


@pytest_asyncio.fixture
async def launcher() -> AsyncIterator[NurseryLauncher]:
    launcher = NurseryLauncher(registry())
    yield launcher
    await launcher.close()


def descriptors(pid: int) -> dict[int, str]:
    return {int(entry.name): str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def environment(pid: int) -> dict[str, str]:
    entries = filter(None, Path(f"/proc/{pid}/environ").read_text().split("\0"))
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def pss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


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


async def test_a_lane_is_confined(launcher: NurseryLauncher) -> None:
    """A session of its own, no new privileges, no core files, and deaf to the signals that make a server drain."""
    lane = LaneDriver(await launcher.start())
    await lane.open("CartPole-v1")
    pid = lane.handle.pid
    assert os.getsid(pid) == os.getpgid(pid) == pid
    assert status(pid)["NoNewPrivs"] == "1"
    assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
        assert launcher.nursery_pid is not None
        os.kill(launcher.nursery_pid, number)
    assert (await lane.step(0)).rewards.tolist() == [1.0]


async def test_tokens_are_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the environment of the nursery and of what it forks: variables by prefix, and those that are named."""
    monkeypatch.setenv("ASYNCRL_TOKEN_FILE", "/run/token")
    monkeypatch.setenv("ASYNCRL_TOKEN", "s3cret")
    monkeypatch.setenv("MY_PASSWORD", "s3cret")
    monkeypatch.setenv("KEPT", "yes")
    launcher = NurseryLauncher(registry(), secrets=["MY_PASSWORD"])
    try:
        handle = await launcher.start()
        for pid in (handle.pid, launcher.nursery_pid):
            assert pid is not None
            variables = environment(pid)
            assert not any("TOKEN" in name or "PASSWORD" in name for name in variables)
            assert (variables["KEPT"], variables["OMP_NUM_THREADS"]) == ("yes", os.environ.get("OMP_NUM_THREADS", "1"))
    finally:
        await launcher.close()


def test_an_owners_number_of_threads_is_kept() -> None:
    """One thread is the default, not a rule."""
    made = child_environment([], {"OMP_NUM_THREADS": "4", "asyncrl_token": "x"})
    assert made["OMP_NUM_THREADS"] == "4"
    assert made["MKL_NUM_THREADS"] == "1"
    assert "asyncrl_token" not in made


@pytest.mark.parametrize(
    ("code", "cause"),
    [(0, "exit(0)"), (3, "exit(3)"), (-9, "crash(SIGKILL)"), (-11, "crash(SIGSEGV)"), (-63, "crash(63)")],
)
def test_causes(code: int, cause: str) -> None:
    """Signals by their name where they have one."""
    assert cause_of(code) == cause


def test_the_nursery_stays_light() -> None:
    """Neither grpc nor torch in the nursery, no simulator in the server."""
    checks = {
        "envserver.nursery": ("grpc", "torch", "gymnasium"),
        "envserver.launching": ("gymnasium", "ale_py", "torch", "envserver.lane_process"),
    }
    for module, heavy in checks.items():
        code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert ran.stdout.strip() == "[]", (module, ran.stdout)


async def test_a_dead_nursery_is_replaced(launcher: NurseryLauncher) -> None:
    """Its lanes die, a hanging one too, and say why; the next start has a new nursery."""
    lanes = [LaneDriver(await launcher.start()) for _ in range(2)]
    await lanes[0].open("wild")
    lanes[0].send_step(HANG)
    first = launcher.nursery_pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert [await lane.cause() for lane in lanes] == ["nursery crash(SIGKILL)"] * 2
    await gone(first, *(lane.handle.pid for lane in lanes))
    again = LaneDriver(await launcher.start())
    assert (await again.open("CartPole-v1")).obs[0].shape == (1, 4)
    assert launcher.nursery_pid not in (None, first)


async def test_a_stopped_nursery_hides_no_death(launcher: NurseryLauncher) -> None:
    """It cannot reap and report; the pidfd tells of the death, only not its cause."""
    lane = LaneDriver(await launcher.start())
    assert launcher.nursery_pid is not None
    os.kill(launcher.nursery_pid, signal.SIGSTOP)
    os.kill(lane.handle.pid, signal.SIGKILL)
    assert await lane.cause() == "crash(unknown)"
    os.kill(launcher.nursery_pid, signal.SIGCONT)


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
