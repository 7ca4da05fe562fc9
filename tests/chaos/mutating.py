"""A gRPC server in the test's loop that stands between client and env server and may change frames on their way.

Against the client it plays the env server that breaks the protocol: `change(message)` gets every whole message that
the real server sends and returns the messages to send instead; their frames are well-formed, CRC and all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import FrameReader, Message, to_frames

SERVICE = "asyncrl.v1.EnvService"
Change = Callable[[Message], list[Message]]


class MutatingServer:
    """`change` may be set at any time."""

    def __init__(self, upstream: str) -> None:
        self.address = ""
        self.change: Change = lambda message: [message]
        self._upstream = upstream
        self._server = grpc.aio.server()
        self._channel = grpc.aio.secure_channel(upstream, grpc.local_channel_credentials())

    async def start(self) -> None:
        methods: dict[str, Any] = {
            "Lane": grpc.stream_stream_rpc_method_handler(self._lane),
            "Describe": grpc.unary_unary_rpc_method_handler(self._describe),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        port = self._server.add_secure_port("127.0.0.1:0", grpc.local_server_credentials())
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0.2)
        await self._channel.close(None)

    async def _describe(self, request: bytes, _context: Any) -> bytes:
        call: Any = self._channel.unary_unary(f"/{SERVICE}/Describe")  # type: ignore[call-arg]
        reply: bytes = await call(request)
        return reply

    async def _lane(self, _requests: Any, context: Any) -> None:
        call: Any = self._channel.stream_stream(f"/{SERVICE}/Lane")()  # type: ignore[call-arg]
        try:
            async with asyncio.TaskGroup() as group:
                up = group.create_task(self._to_server(context, call))
                await self._to_client(call, context)
                up.cancel()
        finally:
            call.cancel()

    async def _to_server(self, context: Any, call: Any) -> None:
        while isinstance(frame := await context.read(), bytes):
            await call.write(frame)
        await call.done_writing()

    async def _to_client(self, call: Any, context: Any) -> None:
        reader = FrameReader(limit=1 << 28)
        while isinstance(frame := await call.read(), bytes):
            message = reader.feed(frame)
            for changed in self.change(message) if message is not None else []:
                for each in to_frames(changed, bool(reader.crc)):
                    await context.write(each)


@asynccontextmanager
async def mutating(upstream: str) -> AsyncIterator[MutatingServer]:
    server = MutatingServer(upstream)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def edited(message: Message, edit: Callable[[pb.StepResult], None]) -> Message:
    """A STEP_RESULT with another body."""
    rows = pb.StepResult.FromString(message.body)
    edit(rows)
    return message._replace(body=rows.SerializeToString())
