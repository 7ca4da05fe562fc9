"""Namespaces are other machines: reachable, cut off, plugged in again, and gone without a trace."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.rig.netns import PREFIX, ip, namespaces, needs_namespaces, remove_stale
from tests.rig.tun_link import tun_link

pytestmark = [pytest.mark.net_root, needs_namespaces]

ECHO = """
import socketserver, sys
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536): self.request.sendall(data)
server = socketserver.ThreadingTCPServer((sys.argv[1], 7007), Echo)
print("ready", flush=True)
server.serve_forever()
"""


@asynccontextmanager
async def echo_in(prefix: Sequence[str], address: str) -> AsyncIterator[None]:
    command = [*prefix, sys.executable, "-c", ECHO, address]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        await process.wait()


async def echoed(address: str, data: bytes, within_s: float = 20.0) -> bytes:
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_connection(address, 7007)
        try:
            writer.write(data)
            return await reader.readexactly(len(data))
        finally:
            writer.transport.abort()


def test_nothing_is_left_of_a_namespace() -> None:
    """Namespaces, links and routes are gone, also after an error inside a cut-off one."""

    def ours() -> list[str]:
        everything = ip("netns", "list") + ip("-br", "link") + ip("route")
        return [line for line in everything.splitlines() if f"{PREFIX}{os.getpid()}n" in line or "blackhole" in line]

    def fail() -> None:
        with namespaces(2) as (left, _):
            left.cut()
            left.cut(to_here=False)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert ours() == []


def test_what_a_killed_run_left_is_removed() -> None:
    """Names that carry the pid of a process that is no more go; those of living ones stay."""
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    names = [f"{PREFIX}{gone.pid}n0", f"{PREFIX}{os.getpid()}n9"]
    try:
        for name in names:
            ip("netns", "add", name)
        remove_stale()
        assert [name in ip("netns", "list") for name in names] == [False, True]
    finally:
        subprocess.run(["ip", "netns", "del", names[1]], check=False)


@pytest.mark.parametrize("way", ["out", "in", "cable"])
async def test_a_cut_is_silence_and_a_heal_is_none(way: str) -> None:
    """Nothing comes back while cut, in either direction or with the cable out; everything does afterwards."""
    with namespaces(1) as (other,):
        async with echo_in(other.prefix, other.address):
            assert await echoed(other.address, b"hello") == b"hello"
            cut = {"out": other.cut, "in": lambda: other.cut(to_here=False), "cable": other.pull}[way]
            heal = {"out": other.heal, "in": lambda: other.heal(to_here=False), "cable": other.plug}[way]
            cut()
            with pytest.raises((TimeoutError, OSError)):
                await echoed(other.address, b"hello", 0.5)
            heal()
            assert await echoed(other.address, b"again") == b"again"


@pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="needs /dev/net/tun")
async def test_tcp_survives_a_lossy_link() -> None:
    """With 3 % of packets lost and 2 ms of delay a megabyte comes back as it was; a dead link is silent."""
    with tun_link(seed=1) as link:
        async with echo_in(link.prefix, link.address):
            link.loss, link.delay_s, link.jitter_s = 0.03, 0.002, 0.001
            data = os.urandom(1 << 20)
            assert await echoed(link.address, data) == data
            assert link.lost > 5
            link.down = True
            with pytest.raises(TimeoutError):
                await echoed(link.address, b"x", 0.5)
