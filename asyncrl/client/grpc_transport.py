"""`Transport` and `Connector` over grpc.aio: channels, streams and their ends.

Control RPCs have a channel of their own, because behind megabytes of rows they would wait; lanes have channels of at
most MAX_STREAMS each. Both ends pass bytes through gRPC and parse them in `wire`.

Invariants: a stream ends by half-close and end-of-stream where the server plays along, and is cancelled where it does
not (test_a_stream_ends_by_protocol, test_a_silent_server_does_not_hold_up_close); no channel carries more than
MAX_STREAMS streams (test_lanes_are_spread_over_channels); what breaks a stream becomes ConnectionLost, whatever gRPC
calls it (test_a_killed_server_is_a_lost_connection), except a message over the limit, which is the peer's fault
(test_a_message_over_the_limit_is_the_peers_fault).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from asyncrl.client.addresses import Address, parse
from asyncrl.client.credentials import Access, channel_credentials
from asyncrl.client.diagnosis import diagnose
from asyncrl.errors import ConnectionFailed, ConnectionLost, RemoteProtocolError, ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import MAX_FRAME_BYTES

MAX_STREAMS: Final = 32
CLOSE_S: Final = 1.0
DESCRIBE_S: Final = 5.0
SERVICE: Final = "/asyncrl.v1.EnvService"

_Call = grpc.aio.StreamStreamCall[bytes, bytes]
_ERROR_CODES: Final = frozenset(pb.ErrorCode.keys())
_CODE = re.compile(r"([A-Z][A-Z_]+): (.*)", re.DOTALL)


def channel_options(address: Address) -> list[tuple[str, int]]:
    """docs/operations.md says why each."""
    local = address.is_unix or address.is_loopback
    return [
        ("grpc.keepalive_time_ms", 5000),  # also arms TCP_USER_TIMEOUT, whose value is the next line
        ("grpc.keepalive_timeout_ms", 5000),
        # The timer that really finds a stalled peer. A ping queues behind data, so slow links need patience.
        ("grpc.http2.ping_timeout_ms", 5000 if local else 20000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
        ("grpc.max_send_message_length", MAX_FRAME_BYTES),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 2000),  # how long one attempt to connect may take, whatever its name says
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.use_local_subchannel_pool", 1),  # a connection per channel
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),  # resuming is the lane protocol's, which knows what was executed
        ("grpc.http2.max_frame_size", 1024 * 1024),
    ]


class GrpcTransport:
    """One Lane RPC."""

    def __init__(self, call: _Call, address: str, on_end: Callable[[], None]) -> None:
        self._call = call
        self._address = address
        self._on_end = on_end
        self._ended = asyncio.Event()  # nothing more to read
        self._writing = False
        self._reading = False
        self._closed = False

    async def send_frame(self, frame: bytes) -> None:
        """See Transport. Cancellation breaks the stream."""
        self._writing = True
        try:
            await self._call.write(frame)
        except asyncio.CancelledError:
            if _is_task_cancelled():
                raise
            raise ConnectionLost(f"{self._address}: the stream was closed") from None
        except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.InternalError) as error:
            raise _lost(self._address, error) from None
        finally:
            self._writing = False

    async def recv_frame(self) -> bytes | None:
        """See Transport. Cancellation breaks the stream."""
        if self._ended.is_set():
            return None
        self._reading = True
        try:
            data: object = await self._call.read()
        except asyncio.CancelledError:
            self._ended.set()
            if _is_task_cancelled():
                raise
            return None  # `close` cancelled the call
        except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.InternalError) as error:
            self._ended.set()
            if self._closed:
                return None
            raise _lost(self._address, error) from None
        finally:
            self._reading = False
        if isinstance(data, bytes):
            return data
        self._ended.set()  # grpc.aio.EOF
        return None

    async def close(self) -> None:
        """See Transport. Waits up to CLOSE_S for the server to end its side. Cancellation ends the call at once."""
        if self._closed:
            return
        self._closed = True
        try:
            # gRPC allows one outstanding write; behind one that is stuck a half-close cannot be sent.
            if not (self._writing or self._call.done()):
                async with asyncio.timeout(CLOSE_S):
                    await self._call.done_writing()
                    await self._read_out()
        except (TimeoutError, grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.InternalError):
            pass  # it is cancelled below
        finally:
            # Abandoned calls are never collected: each one is ended, whatever happened before.
            self._call.cancel()
            self._on_end()

    async def _read_out(self) -> None:
        """Until the server has ended its side; whoever reads already goes on doing so."""
        while not self._ended.is_set():
            if self._reading:
                await self._ended.wait()
            else:
                await self.recv_frame()


class _LaneChannel:
    """A channel for lanes, and how many streams it carries."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.streams = 0
        # The stubs lack the defaults: no serialisers means bytes.
        self.open: Callable[[], _Call] = cast(Any, channel).stream_stream(f"{SERVICE}/Lane")

    def release(self) -> None:
        self.streams -= 1


class GrpcConnector:
    """The way to the env server at `address` (`host:port`, `unix:/path`). Make and use it on one running loop."""

    def __init__(self, address: str, access: Access | None = None) -> None:
        self._parsed = parse(address)
        self.address = self._parsed.text
        self._access = access or Access()
        self.is_tls = self._access.uses_tls(self._parsed)
        # TLS and the kernel protect the other two kinds of connection.
        self.with_crc = not (self.is_tls or self._parsed.is_unix)
        self._credentials = channel_credentials(self._parsed, self._access)
        self._options = channel_options(self._parsed)
        self._control: grpc.aio.Channel | None = None
        self._lane_channels: list[_LaneChannel] = []

    def sibling(self) -> GrpcConnector:
        """Another connector to the same server, with channels of its own: for simulation lanes."""
        return GrpcConnector(self.address, self._access)

    def start(self) -> None:
        """Make the channel of the first stream now: gRPC's threads start with the first channel of a process, and are
        scheduled as whoever makes it."""
        self._lane_channels.append(_LaneChannel(self._new_channel()))

    async def open_stream(self) -> GrpcTransport:
        """See Connector. Returns at once; a server that is not there shows in the first read."""
        spot = next((each for each in self._lane_channels if each.streams < MAX_STREAMS), None)
        if spot is None:
            spot = _LaneChannel(self._new_channel())
            self._lane_channels.append(spot)
        call = spot.open()
        spot.streams += 1
        return GrpcTransport(call, self.address, spot.release)

    async def describe(self, request: pb.DescribeRequest) -> pb.DescribeReply:
        """See Connector. A failure is diagnosed stage by stage, off the happy path. Cancellation ends the RPC."""
        if self._control is None:
            self._control = self._new_channel()
        method = cast(Any, self._control).unary_unary(f"{SERVICE}/Describe")
        try:
            reply: bytes = await method(request.SerializeToString(), timeout=DESCRIBE_S)
        except grpc.aio.AioRpcError as error:
            found = _CODE.fullmatch(error.details() or "")
            if found is not None and found[1] in _ERROR_CODES:
                raise ServerRefused(found[1], f"{self.address}: {found[2]}") from None
            text = f"{error.code().name}: {error.details()}"
            raise await diagnose(self._parsed, self._access, error.code().name, text) from None
        try:
            return pb.DescribeReply.FromString(reply)
        except DecodeError:
            raise RemoteProtocolError(f"{self.address}: the answer to Describe is no DescribeReply") from None

    async def close(self) -> None:
        """Close every channel; transports should have been closed before. Idempotent."""
        channels = [each.channel for each in self._lane_channels]
        if self._control is not None:
            channels.append(self._control)
        self._lane_channels, self._control = [], None
        for channel in channels:
            await channel.close(None)

    def _new_channel(self) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(self._parsed.target, self._credentials, options=self._options)


def _is_task_cancelled() -> bool:
    """Whether a CancelledError means this task, and not the call that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _lost(address: str, error: Exception) -> ConnectionFailed | RemoteProtocolError:
    if isinstance(error, grpc.aio.AioRpcError):
        code, details = error.code().name, error.details() or ""
        if code == "RESOURCE_EXHAUSTED" and "larger than max" in details:
            return RemoteProtocolError(f"{address}: {details}", "FRAME_TOO_BIG")  # asking again would bring it again
        if code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
            return ConnectionFailed(f"{address}: the token was refused: {details}", "token")
        return ConnectionLost(f"{address}: {code}: {details}", code.lower())
    return ConnectionLost(f"{address}: {error}")
