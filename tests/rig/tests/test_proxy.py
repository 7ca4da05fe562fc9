"""The fault proxy does what its fields say, measured with plain sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.rig.census import census
from tests.rig.proxy import WINDOW_BYTES, FaultProxy

pytestmark = pytest.mark.rpc


@contextlib.asynccontextmanager
async def echo_server(path: str | None = None) -> AsyncIterator[tuple[str, int] | str]:
    """Sends back what it gets."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    if path is None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        where: tuple[str, int] | str = server.sockets[0].getsockname()[:2]
    else:
        server = await asyncio.start_unix_server(echo, path)
        where = path
    try:
        yield where
    finally:
        server.close()


@contextlib.asynccontextmanager
async def dialled(proxy: FaultProxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@pytest.mark.parametrize("unix", [False, True])
async def test_a_quiet_proxy_changes_nothing(tmp_path: Path, unix: bool) -> None:
    """A megabyte comes back as it was, through TCP and from a Unix socket."""
    data = os.urandom(1 << 20)
    path = str(tmp_path / "s") if unix else None
    async with echo_server(path) as where, FaultProxy(where) as proxy, dialled(proxy) as (reader, writer):
        writer.write(data)
        assert await reader.readexactly(len(data)) == data
        assert proxy.to_server.passed == proxy.to_client.passed == len(data)
        assert proxy.live == 1


async def test_reset_and_end_come_at_their_byte() -> None:
    """RST and FIN let exactly the bytes before their offset through; the next connection is whole."""
    async with echo_server() as where, FaultProxy(where) as proxy:
        proxy.to_server.reset_after = 100
        async with dialled(proxy) as (reader, writer):
            writer.write(bytes(500))
            with pytest.raises(ConnectionResetError):
                await reader.read()
        assert proxy.to_server.passed == 100
        proxy.to_client.end_after = proxy.to_client.passed + 30
        async with dialled(proxy) as (reader, writer):
            writer.write(bytes(500))
            assert len(await reader.read()) == 30
        async with dialled(proxy) as (reader, writer):
            writer.write(b"again")
            assert await reader.readexactly(5) == b"again"


async def test_one_bit_flips_at_its_byte() -> None:
    """Exactly one bit of exactly that byte changes, once."""
    async with echo_server() as where, FaultProxy(where) as proxy, dialled(proxy) as (reader, writer):
        proxy.to_server.flip_at = 777
        writer.write(bytes(2000))
        data = await reader.readexactly(2000)
        assert [at for at, byte in enumerate(data) if byte] == [777]
        assert data[777].bit_count() == 1


async def test_a_hole_stops_the_sender() -> None:
    """Nothing arrives while there is a hole, the proxy holds no more than its window, and all of it comes after."""
    async with echo_server() as where, FaultProxy(where) as proxy, dialled(proxy) as (reader, writer):
        proxy.to_server.hole = True
        writer.write(bytes(100))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await reader.read(1)
        assert proxy.to_server.passed == 0
        writer.write(bytes(8 * WINDOW_BYTES))
        await asyncio.sleep(0.1)
        proxy.to_server.hole = False
        await reader.readexactly(100 + 8 * WINDOW_BYTES)


async def test_delay_and_rate_hold_back() -> None:
    """A round trip takes at least both delays; a slow way at least size / rate."""
    loop = asyncio.get_running_loop()
    async with echo_server() as where, FaultProxy(where) as proxy, dialled(proxy) as (reader, writer):
        proxy.to_server.delay_s = proxy.to_client.delay_s = 0.05
        began = loop.time()
        writer.write(b"x")
        await reader.readexactly(1)
        assert loop.time() - began >= 0.09
        proxy.to_server.delay_s = proxy.to_client.delay_s = 0.0
        proxy.to_client.bytes_per_s = 100_000
        began = loop.time()
        writer.write(bytes(20_000))
        await reader.readexactly(20_000)
        assert loop.time() - began >= 0.19


async def test_refusing_resets_newcomers() -> None:
    """With `refuse`, and with nobody upstream, a newcomer is reset."""
    async with echo_server() as where, FaultProxy(where) as proxy:
        proxy.refuse = True
        async with dialled(proxy) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.read()
    async with FaultProxy(where) as proxy, dialled(proxy) as (reader, _):
        with pytest.raises(ConnectionResetError):
            await reader.read()


async def test_reset_now_ends_both_ends() -> None:
    """`reset` reaches the client at once; `close` is a clean end."""
    async with echo_server() as where, FaultProxy(where) as proxy:
        async with dialled(proxy) as (reader, writer):
            writer.write(b"x")
            await reader.readexactly(1)
            proxy.reset()
            with pytest.raises(ConnectionResetError):
                await reader.read()
        async with dialled(proxy) as (reader, writer):
            writer.write(b"x")
            await reader.readexactly(1)
            proxy.close()
            assert await reader.read() == b""


async def test_nothing_is_left_of_a_proxy() -> None:
    """Sockets, listeners and tasks are gone after the block, also of connections that were open."""
    async with census(), echo_server() as where:
        async with FaultProxy(where) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            proxy.hole()
            writer.write(b"x")
            await asyncio.sleep(0.05)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
