"""Small gRPC servers in this process, with behaviour that tests choose."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb

Context = grpc.aio.ServicerContext[bytes, bytes]
Lane = Callable[[Context], Awaitable[None]]
LOCAL = grpc.local_server_credentials(grpc.LocalConnectionType.LOCAL_TCP)


@dataclass
class GrpcToy:
    """An EnvService. `metadata` has that of every call."""

    address: str
    server: grpc.aio.Server
    metadata: list[dict[str, Any]] = field(default_factory=list)


async def echo(context: Context) -> None:
    """Every frame back; the handler ends with the client's half-close."""
    while isinstance(data := await context.read(), bytes):
        await context.write(data)


async def describe(_request: bytes, _context: Context) -> bytes:
    return pb.DescribeReply(protocol=handshake.version(), boot_id="boot", capacity=4).SerializeToString()


@asynccontextmanager
async def grpc_toy(
    lane: Lane = echo,
    describe: Callable[[bytes, Context], Awaitable[bytes]] = describe,
    listen: str = "127.0.0.1:0",
    credentials: grpc.ServerCredentials = LOCAL,
) -> AsyncIterator[GrpcToy]:
    """A server on `listen`, stopped at the end."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 1 << 24)])
    toy = GrpcToy("", server)

    def noted(context: Context) -> None:
        toy.metadata.append(dict(context.invocation_metadata() or ()))

    async def lane_handler(_requests: object, context: Context) -> None:
        noted(context)
        await lane(context)

    async def describe_handler(request: bytes, context: Context) -> bytes:
        noted(context)
        return await describe(request, context)

    handlers = {
        "Lane": grpc.stream_stream_rpc_method_handler(lane_handler),
        "Describe": grpc.unary_unary_rpc_method_handler(describe_handler),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("asyncrl.v1.EnvService", handlers),))
    port = server.add_secure_port(listen, credentials)
    toy.address = listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{port}"
    await server.start()
    try:
        yield toy
    finally:
        await server.stop(None)
