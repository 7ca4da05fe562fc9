"""Framing on a lane's socketpair, for both of its ends: the relay's event loop and the blocking lane process.

A message is a header (body length, deadline, kind, seq) and its body; kinds are the wire's and those below.

Invariants: any split of the byte stream gives the same messages (test_any_split_of_the_stream_gives_the_same_messages);
no buffer grows past the body limit, whatever the header claims (test_a_body_over_the_limit_is_refused);
a message is never half-sent (test_bodies_larger_than_the_socket_buffer_arrive_whole); a lane that breaks these rules,
or those of its owner, is cut off, and the owner is told why (test_an_impossible_header_closes_the_socket,
test_what_the_owner_refuses_closes_the_socket).
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, cast

from asyncrl.errors import ProtocolError, RemoteProtocolError

# Internal kinds, outside the range of the wire's.
PREPARE: Final = 100  # body pb.Open: build the environments now
PREPARED: Final = 101  # body pb.Opened, without the relay's fields
CONFIGURE: Final = 102  # JSON: what a lane that was not forked from the nursery has to know first
BROKEN: Final = 103  # from `LaneProtocol` to its owner: text; the lane broke the protocol, and nothing more comes

HEADER: Final = struct.Struct("<IIBxxxQ")  # body length, deadline_ms, kind, seq
READ_BYTES: Final = 64 * 1024
# First observations and finals of 1024 stacked Atari slots are 58 MB.
MAX_BODY_BYTES: Final = 256 * 1024 * 1024
# Below this one copy of the body is cheaper than a second buffer for the transport.
_JOIN_BYTES: Final = 32 * 1024
_REST_READS: Final = 1024


class LaneMessage(NamedTuple):
    """One message of either direction."""

    kind: int
    seq: int
    body: bytes
    deadline_ms: int = 0


class MessageBuffer:
    """Bytes in, messages out. A body that does not fit into the read buffer is received in place."""

    def __init__(self, limit: int = MAX_BODY_BYTES) -> None:
        self._limit = limit
        self._view = memoryview(bytearray(READ_BYTES))
        self._start = self._end = 0
        self._large: memoryview | None = None  # the body of `_large_head`, filled up to `_large_end`
        self._large_end = 0
        self._large_head = (0, 0, 0)  # kind, seq, deadline_ms

    def writable(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._large is not None:
            return self._large[self._large_end :]
        return self._view[self._end :]

    def feed(self, count: int) -> Iterator[LaneMessage]:
        """Account for `count` bytes written to `writable()`; the messages that are whole now. Exhaust it."""
        if self._large is not None:
            self._large_end += count
            if self._large_end < len(self._large):
                return
            body, self._large = bytes(self._large), None
            kind, seq, deadline_ms = self._large_head
            yield LaneMessage(kind, seq, body, deadline_ms)
            return
        self._end += count
        view, start, end = self._view, self._start, self._end
        while end - start >= HEADER.size:
            length, deadline_ms, kind, seq = HEADER.unpack_from(view, start)
            stop = start + HEADER.size + length
            if stop > end:
                if length > READ_BYTES - HEADER.size:
                    self._begin_large(length, (kind, seq, deadline_ms), view[start + HEADER.size : end])
                    start = end
                break
            body = bytes(view[start + HEADER.size : stop])
            start = stop
            yield LaneMessage(kind, seq, body, deadline_ms)
        if start == end:
            start = end = 0
        elif start:
            # The rest is part of one message. Through bytes, because the two places may overlap.
            view[: end - start] = bytes(view[start:end])
            start, end = 0, end - start
        self._start, self._end = start, end

    def _begin_large(self, length: int, head: tuple[int, int, int], received: memoryview) -> None:
        if length > self._limit:
            raise RemoteProtocolError(f"a body of {length} bytes; the limit is {self._limit}", "FRAME_TOO_BIG")
        self._large = memoryview(bytearray(length))
        self._large[: len(received)] = received
        self._large_end = len(received)
        self._large_head = head


class BlockingLaneSocket:
    """The lane process's end."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._buffer = MessageBuffer()

    def receive(self) -> list[LaneMessage]:
        """Wait for data; the messages that are whole by then, possibly none. EOFError when the relay has gone."""
        return self._read(0)

    def receive_nowait(self) -> list[LaneMessage]:
        """What can be read without waiting. Nothing on Windows, where this flag does not exist."""
        flag = getattr(socket, "MSG_DONTWAIT", 0)
        if not flag:
            return []
        try:
            return self._read(flag)
        except BlockingIOError:
            return []

    def send(self, kind: int, seq: int, body: bytes) -> None:
        """Waits while the relay's end is full; returns when all of it is on its way."""
        header = HEADER.pack(len(body), 0, kind, seq)
        if not hasattr(self._sock, "sendmsg"):
            self._sock.sendall(header)
            self._sock.sendall(body)
            return
        sent = self._sock.sendmsg((header, body))
        if sent < len(header) + len(body):
            # A signal came in between. The header went out: it is far smaller than any socket buffer.
            self._sock.sendall(memoryview(body)[sent - len(header) :])

    def _read(self, flags: int) -> list[LaneMessage]:
        try:
            count = self._sock.recv_into(self._buffer.writable(), 0, flags)
        except ConnectionError:
            count = 0
        if not count:
            raise EOFError("the relay closed the lane")
        return list(self._buffer.feed(count))


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
