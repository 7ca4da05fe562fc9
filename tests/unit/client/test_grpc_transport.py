"""The gRPC transport against real gRPC on the loopback interface."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from asyncrl.client.addresses import parse
from asyncrl.client.credentials import Access
from asyncrl.client.grpc_transport import CLOSE_S, MAX_STREAMS, GrpcConnector, GrpcTransport, channel_options
from asyncrl.errors import ConnectionFailed, ConnectionLost, RemoteProtocolError, ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from tests.unit.client.grpc_toys import Context, GrpcToy, echo, grpc_toy


@pytest.fixture
async def toy() -> AsyncIterator[GrpcToy]:
    async with grpc_toy() as made:
        yield made


@pytest.fixture
async def connector(toy: GrpcToy) -> AsyncIterator[GrpcConnector]:
    made = GrpcConnector(toy.address)
    yield made
    await made.close()


async def test_frames_travel_both_ways(connector: GrpcConnector) -> None:
    """Bytes in, the same bytes out, in order; also a frame of the largest size."""
    transport = await connector.open_stream()
    for frame in (b"a", b"bc", bytes(8 * 1024 * 1024)):
        await transport.send_frame(frame)
        assert await transport.recv_frame() == frame
    await transport.close()


async def test_a_stream_ends_by_protocol(connector: GrpcConnector) -> None:
    """Half-close, the server ends its side, end of stream: status OK, nothing was cancelled."""
    transport = await connector.open_stream()
    await transport.send_frame(b"bye")
    assert await transport.recv_frame() == b"bye"
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(transport.recv_frame())
        await asyncio.sleep(0)
        await transport.close()
    assert reading.result() is None
    assert await transport._call.code() is grpc.StatusCode.OK
    await transport.close()
    assert await transport.recv_frame() is None


async def test_close_leaves_the_last_frames_to_whoever_reads() -> None:
    """gRPC allows one outstanding read: while a task reads, `close` waits for it, and nothing is cancelled."""

    async def slow_goodbye(context: Context) -> None:
        await echo(context)
        await asyncio.sleep(0.1)
        await context.write(b"last")
        await asyncio.sleep(0.1)

    async def read_out(transport: GrpcTransport) -> list[bytes]:
        frames = []
        while (frame := await transport.recv_frame()) is not None:
            frames.append(frame)
        return frames

    async with grpc_toy(slow_goodbye) as toy:
        connector = GrpcConnector(toy.address)
        transport = await connector.open_stream()
        await transport.send_frame(b"bye")
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read_out(transport))
            await asyncio.sleep(0)
            await transport.close()
        assert reading.result() == [b"bye", b"last"]
        assert await transport._call.code() is grpc.StatusCode.OK
        await connector.close()


async def test_a_silent_server_does_not_hold_up_close() -> None:
    """A handler that never ends: the call is cancelled, and a pending read ends with None."""

    async def never(context: Context) -> None:
        await asyncio.sleep(3600)

    async with grpc_toy(never) as toy:
        connector = GrpcConnector(toy.address)
        transport = await connector.open_stream()
        await transport.send_frame(b"x")
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(transport.recv_frame())
            await asyncio.sleep(0.05)
            async with asyncio.timeout(CLOSE_S + 3):
                await transport.close()
        assert reading.result() is None
        assert transport._call.cancelled()
        await connector.close()


async def test_a_stuck_write_does_not_hold_up_close() -> None:
    """A server that reads nothing: the writer is stuck in flow control, and close ends it as a lost connection."""

    async def deaf(context: Context) -> None:
        await asyncio.sleep(3600)

    async def flood(transport: GrpcTransport) -> str:
        try:
            while True:
                await transport.send_frame(bytes(4 * 1024 * 1024))
        except ConnectionLost as error:
            return str(error)

    async with grpc_toy(deaf) as toy:
        connector = GrpcConnector(toy.address)
        transport = await connector.open_stream()
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(flood(transport))
            await asyncio.sleep(0.5)
            await transport.close()
        assert "closed" in writing.result() or "CANCELLED" in writing.result()
        await connector.close()


async def test_a_killed_server_is_a_lost_connection(tmp_path: Path) -> None:
    """SIGKILL: the pending read raises ConnectionLost at once, and so does the next write."""
    code = "import asyncio\nfrom tests.unit.client.grpc_toys import grpc_toy\n"
    code += "async def main():\n async with grpc_toy() as toy:\n  print(toy.address, flush=True)\n"
    code += "  await asyncio.sleep(60)\nasyncio.run(main())\n"
    root = Path(__file__).parents[3]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE, cwd=root)
    assert process.stdout is not None
    connector = GrpcConnector((await process.stdout.readline()).decode().strip())
    transport = await connector.open_stream()
    await transport.send_frame(b"x")
    assert await transport.recv_frame() == b"x"
    process.send_signal(signal.SIGKILL)
    with pytest.raises(ConnectionLost, match="UNAVAILABLE"):
        await transport.recv_frame()
    with pytest.raises(ConnectionLost):
        await transport.send_frame(b"y")
    await transport.close()
    await connector.close()
    await process.wait()


async def test_a_message_over_the_limit_is_the_peers_fault() -> None:
    """gRPC ends the stream with RESOURCE_EXHAUSTED; a new stream would only bring the same again."""

    async def too_much(context: Context) -> None:
        await context.write(bytes(17 * 1024 * 1024))

    async with grpc_toy(too_much) as toy:
        connector = GrpcConnector(toy.address)
        transport = await connector.open_stream()
        with pytest.raises(RemoteProtocolError, match="larger than max") as caught:
            await transport.recv_frame()
        assert caught.value.code == "FRAME_TOO_BIG"
        await transport.close()
        await connector.close()


async def test_a_server_that_has_enough_of_us_is_a_lost_connection() -> None:
    """RESOURCE_EXHAUSTED of any other kind, such as a proxy's or "too many pings": a new stream may be welcome."""

    async def enough(context: Context) -> None:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams")

    async with grpc_toy(enough) as toy:
        connector = GrpcConnector(toy.address)
        transport = await connector.open_stream()
        with pytest.raises(ConnectionLost, match="too many streams"):
            await transport.recv_frame()
        await transport.close()
        await connector.close()


async def test_nobody_there_shows_in_the_first_read() -> None:
    """`open_stream` returns at once; reading says that nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        connector = GrpcConnector(f"127.0.0.1:{free.getsockname()[1]}")
        transport = await connector.open_stream()
        with pytest.raises(ConnectionLost, match="UNAVAILABLE"):
            await transport.recv_frame()
        await transport.close()
        await connector.close()


async def test_lanes_are_spread_over_channels(connector: GrpcConnector) -> None:
    """The next stream after MAX_STREAMS has a channel of its own; freed places are used again."""
    transports = [await connector.open_stream() for _ in range(MAX_STREAMS + 1)]
    assert [spot.streams for spot in connector._lane_channels] == [MAX_STREAMS, 1]
    await asyncio.gather(*(transport.close() for transport in transports[:5]))
    assert [spot.streams for spot in connector._lane_channels] == [MAX_STREAMS - 5, 1]
    transports.append(await connector.open_stream())
    assert [spot.streams for spot in connector._lane_channels] == [MAX_STREAMS - 4, 1]
    await asyncio.gather(*(transport.close() for transport in transports))
    assert [spot.streams for spot in connector._lane_channels] == [0, 0]


async def test_calls_are_collected_after_close(connector: GrpcConnector) -> None:
    """A hundred streams leave nothing in the channel: abandoned calls would stay for ever."""
    for _ in range(100):
        transport = await connector.open_stream()
        await transport.send_frame(b"x")
        await transport.close()
    (spot,) = connector._lane_channels
    assert spot.streams == 0
    calls = getattr(spot.channel, "_active_calls", None)
    assert calls is not None
    assert len([call for call in calls if not call.done()]) == 0


async def test_describe_over_grpc(connector: GrpcConnector) -> None:
    """The reply, parsed."""
    assert (await connector.describe(pb.DescribeRequest())).boot_id == "boot"


@pytest.mark.parametrize(
    ("code", "details", "error", "text"),
    [
        (grpc.StatusCode.NOT_FOUND, "UNKNOWN_ENV: there are: pong", ServerRefused, "there are: pong"),
        (grpc.StatusCode.UNAUTHENTICATED, "invalid token", ConnectionFailed, "token FAILED: the server wants a token"),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", ConnectionFailed, "no asyncrl env server"),
        (grpc.StatusCode.INTERNAL, "INTERNAL: id 17", ServerRefused, "id 17"),
    ],
)
async def test_refusals_of_describe_are_typed(
    code: grpc.StatusCode, details: str, error: type[Exception], text: str
) -> None:
    """A wire code in the status is a refusal; other statuses are diagnosed."""

    async def refuse(_request: bytes, context: Context) -> bytes:
        await context.abort(code, details)

    async with grpc_toy(describe=refuse) as toy:
        connector = GrpcConnector(toy.address)
        with pytest.raises(error, match=text):
            await connector.describe(pb.DescribeRequest())
        await connector.close()


async def test_no_proxy_stands_between(toy: GrpcToy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy for HTTP that the environment names is not for lanes: here there is none where it says."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    connector = GrpcConnector(toy.address)
    assert (await connector.describe(pb.DescribeRequest())).boot_id == "boot"
    await connector.close()


async def test_a_description_of_garbage_is_the_peers_fault() -> None:
    """Parsed by us: gRPC would hand on None."""

    async def garbage(_request: bytes, context: Context) -> bytes:
        return b"\xff\xff"

    async with grpc_toy(describe=garbage) as toy:
        connector = GrpcConnector(toy.address)
        with pytest.raises(RemoteProtocolError):
            await connector.describe(pb.DescribeRequest())
        await connector.close()


async def test_a_unix_socket_needs_no_crc(tmp_path: Path) -> None:
    """The kernel carries it; plaintext TCP is checked by CRC, TLS by itself."""
    path = f"unix:{tmp_path}/a socket"
    credentials = grpc.local_server_credentials(grpc.LocalConnectionType.UDS)
    listen = f"unix:{tmp_path}/a%20socket"
    async with grpc_toy(listen=listen, credentials=credentials):
        connector = GrpcConnector(path)
        assert not connector.with_crc
        assert (await connector.describe(pb.DescribeRequest())).boot_id == "boot"
        await connector.close()
    assert GrpcConnector("127.0.0.1:1").with_crc
    assert not GrpcConnector("worker:1").with_crc


async def test_the_token_travels_with_every_call(tmp_path: Path) -> None:
    """Describe and Lane; and a token that was rotated on disk is used for the next call."""
    path = tmp_path / "token"
    path.write_text("observer aaa\n# a comment\nlearner first-token # mine\nlearner second\n")
    async with grpc_toy() as toy:
        connector = GrpcConnector(toy.address, Access(token_file=str(path)))
        await connector.describe(pb.DescribeRequest())
        path.write_text("learner rotated\n")
        transport = await connector.open_stream()
        await transport.send_frame(b"x")
        assert await transport.recv_frame() == b"x"
        await transport.close()
        assert [each["authorization"] for each in toy.metadata] == ["Bearer first-token", "Bearer rotated"]
        await connector.close()


def test_slow_links_get_a_patient_ping() -> None:
    """A PING queues behind data, which only a local link moves within 5 s."""
    key = "grpc.http2.ping_timeout_ms"
    assert dict(channel_options(parse("127.0.0.1:1")))[key] == 5000
    assert dict(channel_options(parse("unix:/x")))[key] == 5000
    assert dict(channel_options(parse("worker:1")))[key] == 20000
