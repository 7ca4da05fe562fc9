"""One stream of a lane: a permanent reader task, a permanent writer task, and the outbox between them and the lane.

Invariants: a read or a write is never cancelled while the stream lives, because that would break it
(test_nothing_is_cancelled_on_a_clean_end); what was sent before `finish` reaches the transport
(test_finish_flushes_the_outbox); a frame after the end is drained and not parsed
(test_frames_after_the_end_are_ignored); a write that fails hides nothing that the peer has said
(test_a_failed_write_hides_no_last_words).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from asyncrl.client.seams import Transport
from asyncrl.errors import AsyncRLError, ConnectionFailed, RemoteProtocolError
from asyncrl.wire.envelope import FrameReader, Message


@dataclass
class WireCounters:
    """Of all streams of a fleet."""

    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class LaneStream:
    """Carries the frames of one lane for as long as one transport lives.

    `take` is called with each whole message, on the loop, and `part_came` for each part of one; they must not raise.
    `fault` says, after `carry`, why the stream broke; None for an end by protocol.
    """

    def __init__(
        self,
        transport: Transport,
        with_crc: bool,
        take: Callable[[Message], None],
        counters: WireCounters,
        part_came: Callable[[], None] = lambda: None,
    ) -> None:
        self.reader = FrameReader(expect_crc=with_crc)
        self.fault: AsyncRLError | None = None
        self._transport = transport
        self._take = take
        self._part_came = part_came
        self._counters = counters
        self._outbox: deque[bytes] = deque()  # bounded by what the lane may have in flight, and a ping
        self._wake = asyncio.Event()
        self._over = asyncio.Event()
        self._finishing = False

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def send(self, frames: list[bytes]) -> None:
        """Queue frames in order; never blocks."""
        self._outbox.extend(frames)
        self._wake.set()

    def finish(self) -> None:
        """End the stream once everything queued has been handed to the transport."""
        self._finishing = True
        self._wake.set()

    def stop(self, fault: AsyncRLError | None = None) -> None:
        """End the stream now; what is still queued is not sent."""
        if not self._over.is_set():
            self.fault = self.fault or fault
            self._over.set()

    async def carry(self) -> None:
        """Run until the stream is over. Cancellation closes the transport and leaves no task behind."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read())
            group.create_task(self._write())
            try:
                await self._over.wait()
            finally:
                self._over.set()
                self._wake.set()
                # Closing first lets both tasks end by themselves: a read that is cancelled leaks inside gRPC.
                await self._transport.close()

    async def _read(self) -> None:
        counters, over = self._counters, self._over
        try:
            while (data := await self._transport.recv_frame()) is not None:
                if over.is_set():
                    continue
                counters.frames_in += 1
                counters.bytes_in += len(data)
                try:
                    message = self.reader.feed(data)
                except RemoteProtocolError as error:
                    self.stop(error)  # the rest is drained: a stream nobody reads does not end
                    continue
                if message is None:
                    self._part_came()
                else:
                    self._take(message)
        except (ConnectionFailed, RemoteProtocolError) as error:
            self.stop(error)
        finally:
            over.set()

    async def _write(self) -> None:
        counters, outbox, wake = self._counters, self._outbox, self._wake
        try:
            while True:
                wake.clear()  # before looking: what is set from here on is seen below
                while outbox and not self._over.is_set():
                    frame = outbox.popleft()
                    counters.frames_out += 1
                    counters.bytes_out += len(frame)
                    await self._transport.send_frame(frame)
                if self._finishing or self._over.is_set():
                    return
                await wake.wait()
        except ConnectionFailed as error:
            # The reader ends the stream: the peer's last words, which say why, may still be unread.
            self.fault = self.fault or error
        finally:
            if self._finishing:
                self._over.set()
