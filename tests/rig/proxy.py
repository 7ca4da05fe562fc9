"""`FaultProxy`: a TCP proxy inside the test's event loop that spoils the connections passing through it.

    async with FaultProxy(("127.0.0.1", 50051)) as proxy:     # or a path: the upstream's Unix socket
        proxy.to_client.delay_s = 0.05
        proxy.to_server.reset_after = 1234        # RST once so many bytes went this way, then off again
        proxy.reset()                             # RST now, both ways

A hole keeps both sockets open and forwards nothing: TCP still acknowledges up to its buffers. For a line on which
nothing is acknowledged use `netns`.

Invariants: without faults bytes pass unchanged and in order (test_a_quiet_proxy_changes_nothing); memory is bounded by
`WINDOW_BYTES` a direction (test_a_hole_stops_the_sender); nothing is left after the block
(test_nothing_is_left_of_a_proxy).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final, Self

WINDOW_BYTES: Final = 256 * 1024
_PIECE: Final = 16 * 1024
_LINGER_OFF: Final = struct.pack("ii", 1, 0)
_POLL_S: Final = 0.005

Upstream = tuple[str, int] | str


@dataclass
class Way:
    """One direction of all connections. Offsets count bytes of this direction over the life of the proxy."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float | None = None
    hole: bool = False  # forward nothing, close nothing
    reset_after: int | None = None  # RST both ends at this offset
    end_after: int | None = None  # truncate: FIN both ends at this offset
    flip_at: int | None = None  # change one bit of the byte at this offset
    passed: int = 0
    flipped: int = 0


@dataclass(eq=False)
class _Connection:
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, reset: bool) -> None:
        """Idempotent."""
        if self.over.is_set():
            return
        self.over.set()
        for writer in (self.client, self.server):
            if reset:
                _linger_off(writer)
            writer.transport.abort()


def _linger_off(writer: asyncio.StreamWriter) -> None:
    """Its close becomes an RST."""
    raw = writer.get_extra_info("socket")
    if raw.fileno() >= 0 and raw.family != socket.AF_UNIX:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_OFF)


class FaultProxy:
    """See the module. Set the fields of `to_server` and `to_client` at any time."""

    def __init__(self, upstream: Upstream, seed: int = 0) -> None:
        self.to_server = Way()
        self.to_client = Way()
        self.refuse = False  # accept, then RST at once
        self.slow_close_s = 0.0  # how long after one end closed the other one learns of it
        self.accepted = 0
        self.port = 0
        self._upstream = upstream
        self._rng = random.Random(seed)
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def live(self) -> int:
        """Connections that pass through now."""
        return len(self._connections)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_PIECE)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancellation leaves connections to the event loop's own end."""
        assert self._server is not None
        self._server.close()
        self.reset()
        async with asyncio.timeout(5):
            while self._connections:
                await asyncio.sleep(_POLL_S)

    def reset(self) -> None:
        """RST every connection, both ends."""
        for connection in list(self._connections):
            connection.end(reset=True)

    def close(self) -> None:
        """FIN every connection, both ends."""
        for connection in list(self._connections):
            connection.end(reset=False)

    def hole(self, on: bool = True) -> None:
        """Forward nothing in either direction."""
        self.to_server.hole = self.to_client.hole = on

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            if self.refuse:
                raise OSError("refused on purpose")
            server_reader, server_writer = await self._dial()
        except OSError:
            _linger_off(writer)
            writer.transport.abort()
            return
        connection = _Connection(writer, server_writer)
        self._connections.add(connection)
        try:
            async with asyncio.TaskGroup() as group:
                pumps = [
                    group.create_task(self._pump(reader, server_writer, self.to_server, connection)),
                    group.create_task(self._pump(server_reader, writer, self.to_client, connection)),
                ]
                await asyncio.wait([*pumps, group.create_task(connection.over.wait())], return_when="FIRST_COMPLETED")
                connection.end(reset=False)
                for pump in pumps:
                    pump.cancel()
        finally:
            connection.end(reset=False)
            self._connections.discard(connection)

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._upstream, str):
            return await asyncio.open_unix_connection(self._upstream, limit=_PIECE)
        return await asyncio.open_connection(*self._upstream, limit=_PIECE)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way, connection: _Connection
    ) -> None:
        """One direction of one connection; either end of it ends the connection."""
        pieces: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue(WINDOW_BYTES // _PIECE)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(reader, way, pieces))
                async for piece in self._due(pieces, way):
                    if not await self._forward(piece, writer, way, connection):
                        return
                with contextlib.suppress(OSError, RuntimeError):
                    writer.write_eof()
                await asyncio.sleep(self.slow_close_s)
        except* OSError:
            pass

    async def _read(
        self, reader: asyncio.StreamReader, way: Way, pieces: asyncio.Queue[tuple[float, bytes] | None]
    ) -> None:
        loop = asyncio.get_running_loop()
        latest = 0.0
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE):
                latest = max(latest, loop.time() + way.delay_s + way.jitter_s * self._rng.random())
                await pieces.put((latest, data))
        await pieces.put(None)

    async def _due(self, pieces: asyncio.Queue[tuple[float, bytes] | None], way: Way) -> AsyncIterator[bytes]:
        """Pieces when their time has come."""
        loop = asyncio.get_running_loop()
        while (item := await pieces.get()) is not None:
            due, data = item
            await asyncio.sleep(max(0.0, due - loop.time()))
            while way.hole:
                await asyncio.sleep(_POLL_S)
            yield data

    async def _forward(self, data: bytes, writer: asyncio.StreamWriter, way: Way, connection: _Connection) -> bool:
        """Write one piece with whatever is to happen inside it; False when that ended the connection."""
        end, reset = _first_end(way, len(data))
        if way.flip_at is not None and 0 <= way.flip_at - way.passed < (len(data) if end is None else end):
            spoiled = bytearray(data)
            spoiled[way.flip_at - way.passed] ^= 0x10
            data, way.flip_at, way.flipped = bytes(spoiled), None, way.flipped + 1
        if end is not None:
            data = data[:end]
        if way.bytes_per_s is not None:
            await asyncio.sleep(len(data) / way.bytes_per_s)
        if connection.over.is_set() or writer.is_closing():
            return False
        way.passed += len(data)
        writer.write(data)
        if end is None:
            await writer.drain()
            return True
        if not reset:
            with contextlib.suppress(OSError, RuntimeError):
                await writer.drain()
        connection.end(reset)
        return False


def _first_end(way: Way, length: int) -> tuple[int | None, bool]:
    """Where in the next `length` bytes the connection ends, and whether by RST. Takes the order off the list."""
    if way.reset_after is not None and way.reset_after - way.passed < length:
        end, way.reset_after = max(0, way.reset_after - way.passed), None
        return end, True
    if way.end_after is not None and way.end_after - way.passed < length:
        end, way.end_after = max(0, way.end_after - way.passed), None
        return end, False
    return None, False
