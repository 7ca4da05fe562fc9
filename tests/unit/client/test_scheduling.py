"""How the client's threads are scheduled."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from asyncrl.client.connecting import connect
from asyncrl.client.scheduling import Scheduling, scheduled
from asyncrl.errors import ConfigError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these calls")


def now() -> tuple[int, set[int]]:
    return os.sched_getscheduler(0), os.sched_getaffinity(0)


def of_a_new_thread() -> tuple[int, set[int]]:
    found: list[tuple[int, set[int]]] = []
    thread = threading.Thread(target=lambda: found.append(now()))
    thread.start()
    thread.join()
    return found[0]


def servers_of_this_process() -> list[int]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if b"envserver" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_threads_inherit_what_was_wished() -> None:
    """The calling thread has it, and so has one that it starts."""
    core = min(os.sched_getaffinity(0))
    with scheduled(Scheduling(core=core)):
        assert now() == of_a_new_thread() == (os.SCHED_BATCH, {core})


def test_nothing_wished_changes_nothing() -> None:
    """Without `batch` and `core` the thread stays as it is."""
    before = now()
    with scheduled(Scheduling(batch=False)):
        assert now() == before


def test_scheduling_is_put_back() -> None:
    """Also when what was done under it fails, or the core does not exist."""
    before = now()
    with pytest.raises(ZeroDivisionError), scheduled(Scheduling(core=min(before[1]))):
        raise ZeroDivisionError
    assert now() == before
    with pytest.raises(OSError, match="Invalid argument"), scheduled(Scheduling(core=4095)):
        raise AssertionError("there is no such core")
    assert now() == before


def test_two_wishes_end_in_any_order() -> None:
    """The one that lasts longer is what holds, and what was there at first comes back at the end."""
    before = now()
    core = min(before[1])
    older, newer = scheduled(Scheduling(core=core)), scheduled(Scheduling(batch=False))
    older.__enter__()
    newer.__enter__()
    older.__exit__(None, None, None)
    assert now() == (os.SCHED_BATCH, {core})  # what the newer one found, and wished no change of
    newer.__exit__(None, None, None)
    assert now() == before


async def test_a_fleet_shares_a_core_and_its_server_does_not() -> None:
    """The embedded server starts before: its lanes need the other cores. Both ends are SCHED_BATCH."""
    before = now()
    core = min(before[1])
    async with connect(env="CartPole-v1", num_envs=2, lanes=1, scheduling=Scheduling(core=core)) as fleet:
        assert now() == (os.SCHED_BATCH, {core})
        arrival = await fleet.recv()
        assert arrival.rows is not None
        servers = servers_of_this_process()
        assert servers
        for pid in servers:
            assert (os.sched_getscheduler(pid), os.sched_getaffinity(pid)) == (os.SCHED_BATCH, before[1])
    assert now() == before


several_cores = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="there are no other cores"
)


@several_cores
def test_what_is_beside_a_core_of_its_own_is_on_the_others() -> None:
    """With `alone`; without it on all of them, and where there is but the one on that one."""
    cores = os.sched_getaffinity(0)
    core = min(cores)
    for alone, wanted in ((True, cores - {core}), (False, cores)):
        with scheduled(Scheduling(core=core, alone=alone), beside=True):
            assert now() == (os.SCHED_BATCH, wanted)
    with scheduled(Scheduling(core=core)), scheduled(Scheduling(core=core, alone=True), beside=True):
        assert now() == (os.SCHED_BATCH, {core})


def test_nobody_is_alone_on_no_core() -> None:
    """Which one has to be said."""
    with pytest.raises(ConfigError, match="say core=0"):
        Scheduling(alone=True)


ALONE = """
import asyncio, os, threading
from pathlib import Path
from asyncrl.client.connecting import connect
from asyncrl.client.scheduling import Scheduling

def servers():
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if b"envserver" in Path(f"/proc/{pid}/cmdline").read_bytes()]

async def main():
    cores = os.sched_getaffinity(0)
    core = min(cores)
    async with connect(env="CartPole-v1", num_envs=2, lanes=1, scheduling=Scheduling(core=core, alone=True)) as fleet:
        assert (await fleet.recv()).rows is not None
        inherited = []
        thread = threading.Thread(target=lambda: inherited.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
        assert inherited == [os.sched_getaffinity(0)] == [{core}]
        names = {int(each.name): (each / "comm").read_text().strip() for each in Path("/proc/self/task").iterdir()}
        grpcs = [thread for thread, name in names.items() if name in ("event_engine", "lifeguard")]
        assert grpcs
        for each in grpcs + servers():
            assert os.sched_getaffinity(each) == cores - {core}, names.get(each, "server")
    assert os.sched_getaffinity(0) == cores

asyncio.run(main())
"""


@several_cores
def test_a_loop_alone_has_grpc_and_its_server_beside_it() -> None:
    """In a process where gRPC has no threads yet."""
    subprocess.run([sys.executable, "-c", ALONE], check=True, timeout=50)
