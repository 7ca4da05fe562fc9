"""The loop that sync users share."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from asyncrl.client import io_loop
from asyncrl.errors import LocalProtocolError


async def where() -> tuple[asyncio.AbstractEventLoop, str]:
    return asyncio.get_running_loop(), threading.current_thread().name


def test_every_caller_shares_one_loop() -> None:
    """From any thread: one loop, on one thread."""
    found = []
    threads = [threading.Thread(target=lambda: found.append(io_loop.run_sync(where()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({id(loop) for loop, _ in found}) == 1
    assert {name for _, name in found} == {"asyncrl-io"}


def test_errors_come_back() -> None:
    """An exception of the coroutine is the caller's."""

    async def fails() -> None:
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        io_loop.run_sync(fails())


def test_waiting_for_itself_is_refused() -> None:
    """On the loop's own thread it would wait for ever."""

    async def inner() -> None:
        with pytest.raises(LocalProtocolError, match="await the coroutine"):
            io_loop.run_sync(where())

    io_loop.run_sync(inner())


def test_it_starts_again_after_stop() -> None:
    """`stop` joins the thread; the next use makes another."""
    first, _ = io_loop.run_sync(where())
    io_loop.stop()
    assert first.is_closed()
    second, _ = io_loop.run_sync(where())
    assert second is not first


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    """The thread did not survive the fork; waiting for it would hang. In a process of its own, which has no gRPC."""
    code = (
        "import asyncio, os\n"
        "from asyncrl.client.io_loop import run_sync\n"
        "assert run_sync(asyncio.sleep(0, 1)) == 1\n"
        "pid = os.fork()\n"
        "assert run_sync(asyncio.sleep(0, 2)) == 2\n"
        "if not pid: os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=30)


def test_exit_does_not_wait_for_the_loop() -> None:
    """A process that used it ends by itself, quietly."""
    code = "import asyncio\nfrom asyncrl.client.io_loop import run_sync\nrun_sync(asyncio.sleep(0))\n"
    finished = subprocess.run([sys.executable, "-c", code], check=True, timeout=30, capture_output=True)
    assert finished.stderr == b""
