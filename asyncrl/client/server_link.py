"""One env server as the client sees it: what it last said of itself, and when it may be tried again.

Invariants: while a server does not answer, the whole client tries it at most once per `MIN_GAP_S`, with growing
pauses, however many lanes wait for it (test_many_lanes_make_one_attempt_at_a_time); whoever waits while an attempt runs
shares its result (test_waiters_share_a_result).
"""

from __future__ import annotations

import asyncio

from asyncrl.client.backoff import Backoff
from asyncrl.client.seams import Clock, Connector, Rng, Transport
from asyncrl.errors import ConnectionFailed, RemoteProtocolError, ServerRefused
from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb

MIN_GAP_S = 0.1


class ServerLink:
    """A connector with memory. `reply` is the last description, None while the server does not answer."""

    def __init__(self, connector: Connector, clock: Clock, rng: Rng, describe_s: float = 5.0) -> None:
        self.connector = connector
        self.reply: pb.DescribeReply | None = None
        self.attempts = 0
        self.failed = False  # the last attempt
        self._clock = clock
        self._describe_s = describe_s
        self._backoff = Backoff(rng)
        self._lock = asyncio.Lock()
        self._error: Exception | None = None
        self._not_before = clock.now()
        self._fresh_until = clock.now()

    @property
    def address(self) -> str:
        return self.connector.address

    def doubt(self) -> None:
        """A stream broke: whatever was known of the server may be wrong."""
        self._fresh_until = self._clock.now()

    async def describe(self) -> pb.DescribeReply:
        """What the server says of itself, at most MIN_GAP_S old. Waits for its turn while the server is down.

        Raises ConnectionFailed or ServerRefused. Cancellation leaves the turn to the next who waits.
        """
        seen = self.attempts
        async with self._lock:
            if self.attempts > seen or (self.reply is not None and self._clock.now() < self._fresh_until):
                return self._shared()
            pause = self._not_before - self._clock.now()
            if pause > 0:
                await self._clock.sleep(pause)
            await self._attempt()
            return self._shared()

    async def open_stream(self, within_s: float) -> Transport:
        """A new stream. Cancellation leaves none behind."""
        try:
            async with asyncio.timeout(within_s):
                return await self.connector.open_stream()
        except TimeoutError:
            raise ConnectionFailed(f"{self.address}: no stream within {within_s:g} s", "stream") from None

    def _shared(self) -> pb.DescribeReply:
        if self._error is not None:
            raise self._error
        assert self.reply is not None
        return self.reply

    async def _attempt(self) -> None:
        reply: pb.DescribeReply | None = None
        error: ConnectionFailed | ServerRefused | None = None
        try:
            async with asyncio.timeout(self._describe_s):
                reply = await self.connector.describe(pb.DescribeRequest())
            skew = handshake.skew(reply.protocol, "server")
            if skew is not None:
                error = ServerRefused("VERSION_SKEW", f"{self.address}: {skew}")
        except TimeoutError:
            error = ConnectionFailed(f"{self.address}: no answer to Describe within {self._describe_s:g} s", "describe")
        except (ConnectionFailed, ServerRefused) as caught:
            error = caught
        except RemoteProtocolError as caught:  # of this server; the fleet goes on with the others
            error = ConnectionFailed(str(caught), "describe")
        now = self._clock.now()
        self.attempts += 1
        self.reply, self._error, self.failed = (None if error else reply), error, error is not None
        if error is None:
            self._backoff.reset()
            self._not_before = self._fresh_until = now + MIN_GAP_S
        else:
            self._not_before = now + max(MIN_GAP_S, self._backoff.next_s())
