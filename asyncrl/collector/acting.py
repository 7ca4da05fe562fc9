"""`Actor`: what those who drive lanes want of whoever finds their actions: an act batcher, or a search."""

from __future__ import annotations

import asyncio
from typing import Protocol, Self

from asyncrl.collector.joining import ActRequest
from asyncrl.policy import Acted


class Actor(Protocol):
    """Belongs to the loop. An async context manager: what it started has ended after the block."""

    def submit(self, request: ActRequest) -> asyncio.Future[Acted]:
        """The future of this lane's rows; one a lane at a time. Whoever cancels it wants no answer any more."""
        ...

    def expect(self, lane: int, coming: bool) -> None:
        """Whether this lane will submit. At first all are expected.

        Of lanes that come back together all are expected before the first of them submits.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_exc: object) -> None: ...
