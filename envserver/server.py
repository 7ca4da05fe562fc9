"""The env server process: gRPC around `EnvServer`, signals, health, the end.

Invariants: no exception text of ours reaches a peer (test_internal_errors_are_opaque); health says
NOT_SERVING before the drain begins (test_health_turns_before_the_drain); SIGTERM ends with status 0 and
nothing left behind (test_sigterm_drains_and_exits_0), also while the first environments are being built
(test_sigterm_is_obeyed_while_warming_up), and after environments were closed (test_sigterm_closes_the_environments); a
second signal waits for nothing (test_a_second_signal_waits_for_nothing).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from asyncrl.errors import RemoteProtocolError, ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import parse_body
from envserver import auth, listening
from envserver.config import ServerConfig
from envserver.core import EnvServer
from envserver.launching import make_launcher
from envserver.watchdog import Watchdog

log = logging.getLogger("envserver.server")

SERVICE: Final = "asyncrl.v1.EnvService"
STALL_S: Final = 25.0
# After the drain, streams that did not end by themselves are cut.
STOP_GRACE_S: Final = 1.0

Context = grpc.aio.ServicerContext[bytes, bytes]

_STATUS: Final = {
    "FRAME_TOO_BIG": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "BAD_FRAME": grpc.StatusCode.DATA_LOSS,
    "UNSUPPORTED": grpc.StatusCode.UNIMPLEMENTED,
    "UNKNOWN_ENV": grpc.StatusCode.NOT_FOUND,
    "BAD_KWARGS": grpc.StatusCode.INVALID_ARGUMENT,
}


class GrpcStream:
    """A gRPC stream as `FrameStream`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.write = context.write
        is_tls = b"ssl" in context.auth_context().get("transport_security_type", ())
        self.needs_crc = not is_tls and not context.peer().startswith("unix:")

    async def read(self) -> bytes | None:
        """The next frame. Cancellation breaks the RPC, which is why only its end is ever cancelled."""
        data: object = await self._context.read()
        return data if isinstance(data, bytes) else None  # grpc.aio.EOF is the only other thing

    async def abort(self, code: str, text: str) -> None:
        await self._context.abort(_STATUS.get(code, grpc.StatusCode.FAILED_PRECONDITION), f"{code}: {text}")


@contextlib.asynccontextmanager
async def _opaque(context: Context, what: str) -> AsyncIterator[None]:
    """Whatever goes wrong inside: an id for the peer, the story for the log."""
    try:
        yield
    except (asyncio.CancelledError, grpc.aio.AbortError):
        raise
    except ServerRefused as error:
        await context.abort(_STATUS.get(error.code, grpc.StatusCode.FAILED_PRECONDITION), str(error))
    except RemoteProtocolError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{error.code}: {error}")
    except BaseException as error:
        if _peer_is_gone(error):
            log.debug("%s: the client is gone", what)
            return
        error_id = secrets.token_hex(4)
        log.exception("%s failed; the client was told id %s", what, error_id)
        await context.abort(grpc.StatusCode.INTERNAL, f"INTERNAL: id {error_id} in the server's log")


def _peer_is_gone(error: BaseException) -> bool:
    """Writing to an RPC that has ended raises one of several things, inside the group of the lane's tasks."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_peer_is_gone, error.exceptions))
    return isinstance(
        error, asyncio.CancelledError | asyncio.InvalidStateError | grpc.RpcError | grpc.aio.AbortError
    ) or (type(error).__name__ in ("ExecuteBatchError", "InternalError", "UsageError"))


def _handlers(core: EnvServer) -> grpc.GenericRpcHandler[bytes, bytes]:
    async def lane(_requests: object, context: Context) -> None:
        async with _opaque(context, "Lane"):
            await core.lane(GrpcStream(context))

    async def describe(request: bytes, context: Context) -> bytes:
        async with _opaque(context, "Describe"):
            asked = parse_body(pb.DescribeRequest, request)
            if asked.env and auth.ROLE.get() != "learner":
                text = "a spec takes a lane process to find out, which is for learners: ask without `env`"
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, text)
            reply = await core.describe(asked)
            return reply.SerializeToString()
        raise AssertionError("unreachable: _opaque aborts or raises")

    methods = {
        "Lane": grpc.stream_stream_rpc_method_handler(lane),
        "Describe": grpc.unary_unary_rpc_method_handler(describe),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def _options(config: ServerConfig, all_local: bool) -> list[tuple[str, int]]:
    quotas = config.quotas
    return [
        ("grpc.so_reuseport", 0),  # a second server on the port fails instead of sharing it
        ("grpc.max_concurrent_streams", config.max_streams),
        ("grpc.max_receive_message_length", quotas.receive_bytes),
        ("grpc.max_send_message_length", quotas.receive_bytes),
        ("grpc.max_metadata_size", quotas.metadata_bytes),
        ("grpc.server_handshake_timeout_ms", int(quotas.handshake_s * 1000)),
        ("grpc.max_connection_idle_ms", int(quotas.idle_connection_s * 1000)),
        ("grpc.keepalive_time_ms", 5000),
        ("grpc.keepalive_timeout_ms", 5000),
        # The timer that really finds a stalled peer. A ping queues behind data, so slow links need patience.
        ("grpc.http2.ping_timeout_ms", 5000 if all_local else 20000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 2500),
        ("grpc.http2.max_frame_size", 1024 * 1024),
    ]


class _Signals:
    """First SIGTERM or SIGINT, or the end of an embedded server's standard input: stop. Second: leave at once."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError):  # Windows
                loop.add_signal_handler(number, self._caught)

    def _caught(self) -> None:
        if self.stop.is_set():
            os._exit(1)
        self.stop.set()

    def watch_stdin(self) -> None:
        """Standard input is the death pipe that the parent holds."""
        loop = asyncio.get_running_loop()

        def readable() -> None:
            if not os.read(0, 4096):
                loop.remove_reader(0)
                self.stop.set()

        loop.add_reader(0, readable)


async def serve(config: ServerConfig) -> int:
    """Serve until told to stop; the exit status. Cancellation stops at once and leaves no process behind."""
    signals = _Signals()
    launcher = make_launcher(config.launcher, config.registry)
    core = EnvServer(config, launcher.start)
    addresses = listening.check(config)
    server = grpc.aio.server(
        interceptors=auth.interceptors(config),
        options=_options(config, all(address.is_local for address in addresses)),
        maximum_concurrent_rpcs=config.max_streams + config.quotas.concurrent_rpcs,
    )
    server.add_generic_rpc_handlers((_handlers(core),))
    status = health.aio.HealthServicer()  # type: ignore[attr-defined]  # the stubs lack it
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    bound = listening.add_ports(server, config)
    try:
        await server.start()
        for name in ("", SERVICE):
            await status.set(name, health_pb2.HealthCheckResponse.SERVING)
        if config.embedded:
            signals.watch_stdin()
        with Watchdog(STALL_S):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(core.run())]
                warming = group.create_task(_warm_up(config, core, bound))
                await signals.stop.wait()
                warming.cancel()  # simulators may take minutes to build, and nobody wants them any more
                await status.enter_graceful_shutdown()
                await core.drain(0.2 if config.embedded else config.drain_s)
                for task in tasks:
                    task.cancel()
    finally:
        await server.stop(STOP_GRACE_S)
        await launcher.close()
        if config.embedded:
            _remove_folders(bound)
    return 0


async def _warm_up(config: ServerConfig, core: EnvServer, bound: list[listening.Address]) -> None:
    """A server is ready when what is to be warm is built, and keeps it so. Cancellation leaves no lane half-built."""
    if core.warm_pool is not None:
        await core.warm_pool.fill()
    _say_ready(config, core, bound)
    if core.warm_pool is not None:
        await core.warm_pool.run()


def _remove_folders(bound: list[listening.Address]) -> None:
    """Those of sockets were made for this server alone, by a parent that may be gone."""
    for address in bound:
        if address.path:
            with contextlib.suppress(OSError):
                Path(address.path).parent.rmdir()


def _say_ready(config: ServerConfig, core: EnvServer, bound: list[listening.Address]) -> None:
    """One line of JSON for programs, on standard output; a welcome for people, on standard error."""
    where = [str(address) for address in bound]
    line = {"ready": where[0], "addresses": where, "pid": os.getpid(), "boot_id": core.boot_id}
    print(json.dumps(line), flush=True)
    if not config.embedded:
        print(listening.welcome(config, bound), file=sys.stderr, flush=True)
