"""The env server that we start ourselves: a real one, as a child."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from asyncrl.client.connecting import connect
from asyncrl.client.embedded import EmbeddedServer
from asyncrl.client.grpc_transport import GrpcConnector
from asyncrl.client.scheduling import Scheduling, scheduled
from asyncrl.errors import ConnectionFailed, LocalProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from tests.unit.envserver.wild_env import PRINT, RAISE, WildEnv, closing_option, pids_that

pytestmark = pytest.mark.rpc


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not reached():
            await asyncio.sleep(0.02)


async def test_it_serves_and_goes() -> None:
    """A socket in a folder of its own; after `stop` the child has ended by itself, and the folder is gone."""
    server = EmbeddedServer("CartPole-v1", 4)
    async with server:
        process = server._process
        pid, is_unix = server.pid, server.address.startswith("unix:")
        folder = Path(server.address.removeprefix("unix:")).parent
        assert folder.stat().st_mode & 0o777 == 0o700 or not is_unix
        connector = GrpcConnector(server.address)
        reply = await connector.describe(pb.DescribeRequest())
        assert (reply.capacity, reply.boot_id) == (4, server.boot_id)
        await connector.close()
        with pytest.raises(LocalProtocolError):
            await server.start()
    assert not is_alive(pid)
    assert process is not None
    assert process.returncode == 0  # it was asked, not killed
    assert not (is_unix and folder.exists())
    await server.stop()


async def test_its_environments_are_closed(tmp_path: Path) -> None:
    """`stop` returns when they are: it closes the child's standard input, and waits."""
    env = closing_option(tmp_path, close_s=0.5)
    async with EmbeddedServer(env, 2) as server, connect(server.address, env="closing", num_envs=2, lanes=2) as fleet:
        assert (await fleet.recv()).rows is not None
        assert (await fleet.recv()).rows is not None
    assert len(pids_that(tmp_path, "closed")) == 2


async def test_the_log_has_what_a_lane_wrote() -> None:
    """The traceback of a slot's fault is in the tail, though its environment prints megabytes before."""
    async with EmbeddedServer(f"wild={WildEnv.__module__}:make", 1) as server:
        async with connect(server.address, env="wild", num_envs=1) as fleet:
            for action in (PRINT, RAISE):
                arrival = await fleet.recv()
                assert arrival.rows is not None
                arrival.lane.step([np.array([action])])
            assert (await fleet.recv()).rows is not None
        await until(lambda: "ValueError: the bottom of the action space" in server.log_tail)


async def test_loopback_where_there_are_no_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""
    monkeypatch.setenv("ASYNCRL_UNIX_SOCKETS", "0")
    async with EmbeddedServer("CartPole-v1", 1) as server:
        assert server.address.startswith("127.0.0.1:")


async def test_a_failed_start_shows_the_last_words() -> None:
    """A setting that cannot be: the stage, the status, and what the child said about it."""
    with pytest.raises(ConnectionFailed, match=r"failed at start: it exited with status 2\n.*last words") as caught:
        async with EmbeddedServer("CartPole-v1", 1, options={"lanes": 7}):
            pass
    assert caught.value.stage == "start"
    assert "--lanes 7" in str(caught.value)


async def test_a_start_has_a_deadline() -> None:
    """Nothing is left of a child that took too long."""
    server = EmbeddedServer("CartPole-v1", 1, start_s=0.05)
    with pytest.raises(ConnectionFailed, match="did not listen within"):
        await server.start()
    assert server.pid == 0


async def test_a_cancelled_start_leaves_no_child() -> None:
    """Whoever gives up while it starts."""
    server = EmbeddedServer("CartPole-v1", 1)
    pids: list[int] = []
    async with asyncio.TaskGroup() as group:
        starting = group.create_task(server.start())
        await until(lambda: server.pid > 0)
        pids.append(server.pid)
        starting.cancel()
    assert not is_alive(pids[0])


def threads_of(pid: int) -> set[tuple[int, int]]:
    """Scheduling policy and number of cores of its threads."""
    threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    return {(os.sched_getscheduler(thread), len(os.sched_getaffinity(thread))) for thread in threads}


async def killed_and_back(server: EmbeddedServer) -> None:
    pid = server.pid
    os.kill(pid, signal.SIGKILL)
    await until(lambda: server.pid not in (0, pid))


async def test_a_child_that_dies_is_started_again() -> None:
    """Twice: its fleet loses its lanes, each once, and has rows from the same address again; nothing stays behind."""
    async with EmbeddedServer("CartPole-v1", 4) as server:
        pids = [server.pid]
        async with connect(server.address, env="CartPole-v1", num_envs=4, lanes=2, seed=1) as fleet:
            for _ in range(2):
                lost, rows = 0, 0
                os.kill(pids[-1], signal.SIGKILL)
                async with asyncio.timeout(20):
                    while lost < 2 or rows < 100 or fleet.lanes_up < 2:
                        arrival = await fleet.recv()
                        lost += arrival.lost is not None
                        rows += lost == 2 and arrival.rows is not None
                        if arrival.rows is not None:
                            arrival.lane.step([np.zeros(arrival.lane.num_slots, np.int64)])
                pids.append(server.pid)
            assert (fleet.stats.faults["lane_lost"], len(set(pids))) == (4, 3)
        folder = Path(server.address.removeprefix("unix:")).parent
    assert not any(is_alive(pid) for pid in pids)
    assert not (server.address.startswith("unix:") and folder.exists())


async def test_what_the_environments_started_does_not_hold_up_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that was started when their module was imported has the child's standard error open, and lives on."""
    pid_file = tmp_path / "pid"
    (tmp_path / "starting.py").write_text(
        "import subprocess, gymnasium\n"
        f"open({str(pid_file)!r}, 'w').write(str(subprocess.Popen(['sleep', '60'], start_new_session=True).pid))\n"
        "def make(): return gymnasium.make('CartPole-v1')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    try:
        async with asyncio.timeout(20), connect(env="starting=starting:make", num_envs=1, seed=1) as fleet:
            assert (await fleet.recv()).rows is not None
        assert is_alive(int(pid_file.read_text()))
    finally:
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


async def test_it_keeps_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are no Unix sockets, the one that it got first."""
    monkeypatch.setenv("ASYNCRL_UNIX_SOCKETS", "0")
    async with EmbeddedServer("CartPole-v1", 1) as server:
        address, boot_id = server.address, server.boot_id
        await killed_and_back(server)
        await until(lambda: server.boot_id != boot_id)
        assert server.address == address


async def test_stop_finds_a_child_that_just_starts_again() -> None:
    """The second child, which does not listen yet, ends as well."""
    server = EmbeddedServer("CartPole-v1", 1)
    await server.start()
    await killed_and_back(server)
    pid = server.pid
    await server.stop()
    assert not is_alive(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is scheduled elsewhere")
async def test_it_is_started_again_as_it_was() -> None:
    """Its program shares one core with a fleet now: the lanes need the others."""
    async with EmbeddedServer("CartPole-v1", 1) as server:
        expected = threads_of(server.pid)
        assert {cores for _, cores in expected} == {len(os.sched_getaffinity(0))}
        with scheduled(Scheduling(core=min(os.sched_getaffinity(0)))):
            boot_id = server.boot_id
            await killed_and_back(server)
            await until(lambda: server.boot_id != boot_id)
            assert threads_of(server.pid) == expected


async def test_the_child_ends_with_its_parent() -> None:
    """SIGKILL of the parent closes the child's standard input, and that ends it; the folder of its socket goes too."""
    code = (
        "import asyncio\nfrom asyncrl.client.embedded import EmbeddedServer\n"
        "async def main():\n"
        "    async with EmbeddedServer('CartPole-v1', 1) as server:\n"
        "        print(server.pid, server.address, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child, address = (await parent.stdout.readline()).decode().split()
    folder = Path(address.removeprefix("unix:")).parent
    assert is_alive(int(child))
    parent.kill()
    await parent.wait()
    await until(lambda: not is_alive(int(child)))
    assert not (address.startswith("unix:") and folder.exists())
