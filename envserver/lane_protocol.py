"""The relay's end of a lane's socketpair, on its event loop.

Apart from `lane_socket`: the nursery and its lanes have no loop, and do not import one (test_the_nursery_stays_light).

Invariants: a message is never half-sent, in either direction (test_bodies_larger_than_the_socket_buffer_arrive_whole);
a lane that breaks the rules of the framing, or those of its owner, is cut off, and the owner is told why
(test_an_impossible_header_closes_the_socket, test_what_the_owner_refuses_closes_the_socket).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final, cast

from asyncrl.errors import ProtocolError
from envserver.lane_socket import BROKEN, HEADER, MessageBuffer

# Below this one copy of the body is cheaper than a second buffer for the transport.
_JOIN_BYTES: Final = 32 * 1024
_REST_READS: Final = 1024


class LaneProtocol(asyncio.BufferedProtocol):
    """The relay's end. Owner sets `on_message` and `on_closed` before anything is sent."""

    def __init__(self) -> None:
        self.on_message: Callable[[int, int, bytes], None] = _nobody
        self.on_closed: Callable[[], None] = lambda: None
        self.is_closed = False
        self._transport: asyncio.Transport | None = None
        self._buffer = MessageBuffer()

    def send(self, kind: int, seq: int, body: bytes, deadline_ms: int = 0) -> None:
        """Never waits. What the socket does not take is kept; the lane protocol bounds how much that can be."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        header = HEADER.pack(len(body), deadline_ms, kind, seq)
        if len(body) <= _JOIN_BYTES:
            transport.write(header + body)
        else:
            transport.write(header)
            transport.write(body)

    def read_rest(self) -> None:
        """Deliver what a process that has died wrote before. POSIX only; not for a peer that still writes."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.pause_reading()
        descriptor = transport.get_extra_info("socket").fileno()
        # A grandchild that inherited the socket may write on: no more than a few socket buffers are read.
        for _ in range(_REST_READS):
            try:
                count = os.readv(descriptor, [self._buffer.writable()])
            except (BlockingIOError, ConnectionError):
                break
            if not count:
                break
            self.buffer_updated(count)
        transport.abort()

    def close(self) -> None:
        """Close the socket, dropping what was not sent or not read; `on_closed` follows."""
        self.on_message = _nobody
        if self._transport is not None:
            self._transport.abort()

    # -------------------------------------------------------------- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.writable()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for message in self._buffer.feed(nbytes):
                self.on_message(message.kind, message.seq, message.body)
        except ProtocolError as error:
            # `feed` or the owner refused it: nothing after it can be read, or believed.
            self.on_message(BROKEN, 0, str(error).encode(errors="replace"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self.on_closed()


def _nobody(kind: int, seq: int, body: bytes) -> None:
    """Before the owner has sent something nothing arrives, and after `close` nothing is wanted."""
