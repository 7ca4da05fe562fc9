"""The least of grpc.aio that carries bytes both ways: a server with one bidi method, the options, the loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from asyncrl.client.loop_factory import new_event_loop

T = TypeVar("T")
Handler = Callable[[AsyncIterator[bytes], Any], Awaitable[None]]

METHOD = "/bare/Stream"
OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


async def bare_server(address: str, handler: Handler) -> None:
    """Serves until SIGTERM."""
    import grpc
    import grpc.aio

    server = grpc.aio.server(options=(*OPTIONS, ("grpc.so_reuseport", 0)))
    service, method = METHOD.strip("/").split("/")
    rpc = grpc.stream_stream_rpc_method_handler(handler)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: rpc}),))
    server.add_insecure_port(address)
    await server.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.stop(0)


def bare_channel(address: str) -> Any:
    import grpc.aio

    return grpc.aio.insecure_channel(address, options=OPTIONS)


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """On the loop that asyncrl runs on."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
