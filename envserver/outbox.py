"""Frames on their way into one stream.

Invariants: what a client does not read is bounded (test_a_full_outbox_takes_nothing); what waits when the
outbox is closed is still written (test_what_waits_is_written_before_it_closes).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

# Frames waiting to be written: replies are bounded by the lane, the rest (PONG, EVENT) by this.
MAX_OUTBOX: Final = 4096


class Outbox:
    """Frames on their way into one stream; one task writes them."""

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._closing = False

    def put(self, frames: list[bytes]) -> bool:
        """False, with nothing taken, where the client does not read what it asked for."""
        if len(self._frames) > MAX_OUTBOX:
            return False
        self._frames.extend(frames)
        self._wake.set()
        return True

    def close(self) -> None:
        """What is waiting is still written."""
        self._closing = True
        self._wake.set()

    async def drain_to(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Write until closed and empty. Cancellation drops what waits."""
        while True:
            while self._frames:
                await write(self._frames.popleft())
            if self._closing:
                return
            self._wake.clear()
            await self._wake.wait()
