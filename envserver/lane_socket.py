"""Framing on a lane's socketpair, and the end of it that the blocking lane process has; the relay's is `lane_protocol`.

A message is a header (body length, deadline, kind, seq) and its body; kinds are the wire's and those below.

Invariants: any split of the byte stream gives the same messages (test_any_split_of_the_stream_gives_the_same_messages);
no buffer grows past the body limit, whatever the header claims (test_a_body_over_the_limit_is_refused).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from asyncrl.errors import RemoteProtocolError

# Internal kinds, outside the range of the wire's.
PREPARE: Final = 100  # body pb.Open: build the environments now
PREPARED: Final = 101  # body pb.Opened, without the relay's fields
CONFIGURE: Final = 102  # JSON: what a lane that was not forked from the nursery has to know first
BROKEN: Final = 103  # from `LaneProtocol` to its owner: text; the lane broke the protocol, and nothing more comes

HEADER: Final = struct.Struct("<IIBxxxQ")  # body length, deadline_ms, kind, seq
READ_BYTES: Final = 64 * 1024
# First observations and finals of 1024 stacked Atari slots are 58 MB.
MAX_BODY_BYTES: Final = 256 * 1024 * 1024


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
