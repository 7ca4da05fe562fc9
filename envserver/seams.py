"""The seams of the server's core: what a relay needs of a stream and of a lane process.

gRPC and real processes stand behind them in production, memory in the simulation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class FrameStream(Protocol):
    """One bidirectional stream as the server sees it; gRPC in production, memory in the simulation.

    `needs_crc`: plaintext TCP, where frames without a CRC are refused, from the first one on.
    """

    needs_crc: bool

    async def read(self) -> bytes | None:
        """The next frame, None at the end of the client's side."""
        ...

    async def write(self, frame: bytes) -> None: ...

    async def abort(self, code: str, text: str) -> None:
        """End the stream with a failure that the client can read; may raise to unwind the handler."""
        ...


class LaneBackend(Protocol):
    """What a relay needs of a lane process."""

    pid: int
    on_message: Callable[[int, int, bytes], None]
    exited: asyncio.Future[str]

    def send(self, kind: int, seq: int, body: bytes, deadline_ms: int = 0) -> None: ...
    def call(self, lane: str) -> None:
        """Say whose it is; for the log."""
        ...

    def log_tail(self) -> bytes: ...
    def dump_stacks(self) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...
