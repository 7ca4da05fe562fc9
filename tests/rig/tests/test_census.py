"""The census names each kind of leak, waits for what is going away, and sees orphans."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from tests.rig.census import Census, census, descendants

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc, which only Linux has")


async def test_every_kind_of_leak_is_named() -> None:
    """A process, a listener, a thread, a task and a directory are each found and named."""
    before = Census.take()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="leaky")
    thread.start()
    sock = socket.create_server(("127.0.0.1", 0))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(asyncio.sleep(60))
        with tempfile.TemporaryDirectory(prefix="asyncrl-leak") as directory:
            child = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220
            await asyncio.sleep(0.1)
            extra = Census.take().extra(before)
            child.kill()
            child.wait()
        stop.set()
        thread.join()
        task.cancel()
    assert extra["processes"] == [f"{child.pid} sleep"]
    assert extra["listeners"] == [f"port {sock.getsockname()[1]}"]
    assert extra["threads"] == ["leaky"]
    assert "sleep" in extra["tasks"][0]
    assert extra["files"] == [Path(directory).name]
    assert "socket" in extra["descriptors"]
    sock.close()
    assert Census.take().extra(before) == {}


def test_what_goes_away_in_time_is_no_leak() -> None:
    """A process that ends within the patience passes; one that does not fails with its name."""
    with census(patience_s=5):
        child = subprocess.Popen(["sleep", "0.3"])
        threading.Thread(target=child.wait).start()
    with pytest.raises(AssertionError, match=r"processes: \d+ sleep"), census(patience_s=0.2):
        child = subprocess.Popen(["sleep", "60"])
    child.kill()
    child.wait()


def test_orphans_are_found_and_reaped() -> None:
    """The child of a child that was killed is seen as ours, and collected when it ends."""
    watch = census(patience_s=0.2)
    watch.__enter__()
    code = "import subprocess, time; p = subprocess.Popen(['sleep', '1']); print(p.pid, flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    orphan = int(child.stdout.readline())
    child.kill()
    child.wait()
    child.stdout.close()
    with pytest.raises(AssertionError, match="sleep"):
        watch.assert_same()
    assert orphan in descendants()
    ends = time.monotonic() + 10
    while orphan in descendants() and time.monotonic() < ends:
        Census.take()
        time.sleep(0.05)
    assert orphan not in descendants()
