"""The seams of the client: everything that waits, dials or draws a random number goes through one of these.

`LaneClient`, `Fleet`, backoff, deadlines and resume are written against them, so that the same code runs over gRPC
and over an in-memory transport on a loop with virtual time. No gRPC, no threads and no `time` behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from asyncrl.wire._generated import env_pb2 as pb


class Transport(Protocol):
    """One bidirectional stream of frames. At most one `send_frame` and one `recv_frame` run at a time."""

    async def send_frame(self, frame: bytes) -> None:
        """Returns when the transport has room for another; raises ConnectionLost on a broken stream."""
        ...

    async def recv_frame(self) -> bytes | None:
        """The next frame; None at the end of the stream or after `close`.

        Raises ConnectionLost on a broken stream, RemoteProtocolError where the peer broke it.
        """
        ...

    async def close(self) -> None:
        """Ends the stream. What was sent before still travels; a pending `recv_frame` returns None. Idempotent."""
        ...


class Connector(Protocol):
    """The way to one env server."""

    @property
    def address(self) -> str: ...

    @property
    def with_crc(self) -> bool:
        """Whether frames carry a CRC: on plaintext TCP."""
        ...

    async def open_stream(self) -> Transport:
        """A new stream for one lane. May return before the server was reached; the first read then raises."""
        ...

    async def describe(self, request: pb.DescribeRequest) -> pb.DescribeReply:
        """Raises ConnectionFailed, naming the stage, or ServerRefused."""
        ...

    async def close(self) -> None: ...


class TimerHandle(Protocol):
    """What `Clock.call_later` gives."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Monotonic seconds."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle: ...


class LoopClock:
    """The clock of the running event loop; on a loop with virtual time, virtual time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        return self._loop.call_later(seconds, callback)


class Rng(Protocol):
    """What `random.Random` has of it."""

    def random(self) -> float: ...

    def getrandbits(self, k: int, /) -> int: ...
