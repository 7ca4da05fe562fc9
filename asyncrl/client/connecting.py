"""`connect`: from addresses, or from nothing, to an open fleet.

Invariant: whatever was made on the way is closed again, the fleet first and the server last
(test_connect_closes_everything_it_made).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from asyncrl.client.credentials import Access
from asyncrl.client.embedded import EmbeddedServer
from asyncrl.client.fleet import Fleet
from asyncrl.client.fleet_config import FleetConfig, FleetEvent
from asyncrl.client.grpc_transport import GrpcConnector
from asyncrl.client.scheduling import Scheduling, scheduled
from asyncrl.errors import ConfigError

Addresses = str | Sequence[str] | None


@asynccontextmanager
async def connect(
    servers: Addresses = None,
    *,
    access: Access | None = None,
    on_event: Callable[[FleetEvent], None] | None = None,
    scheduling: Scheduling | None = None,
    **settings: Any,
) -> AsyncIterator[Fleet]:
    """An open `Fleet` on the env servers at `servers`: one address, a list or "a:1,b:2"; None starts one of our own.

    `settings` are the fields of `FleetConfig`: env, num_envs, seed, kwargs, autoreset, ...

        async with connect(env="CartPole-v1", num_envs=8, seed=1) as fleet:
            async for arrival in fleet:
                if arrival.rows is not None:
                    arrival.lane.step([np.zeros(arrival.lane.num_slots, np.int64)])

    Raises ConfigError, ConnectionFailed (naming the stage) or ServerRefused. Leaving it closes everything.
    """
    wish = scheduling or Scheduling()
    async with AsyncExitStack() as stack:
        connectors = []
        with scheduled(wish, beside=True):  # which an embedded server inherits, and with `alone` gRPC's threads
            if servers is None:
                servers, settings = await _embedded(stack, settings)
            try:
                config = FleetConfig(**settings)
            except TypeError as error:
                raise ConfigError(f"connect: {error}") from None
            for address in addresses(servers):
                connectors.append(GrpcConnector(address, access))
                stack.push_async_callback(connectors[-1].close)
            if wish.alone:
                connectors[0].start()
        stack.enter_context(scheduled(wish))
        yield await stack.enter_async_context(Fleet(connectors, config, on_event=on_event))


def addresses(servers: str | Sequence[str]) -> list[str]:
    """One address each, in order; the same one twice is a mistake."""
    texts = servers.split(",") if isinstance(servers, str) else list(servers)
    found = [text.strip() for text in texts if text.strip()]
    if not found:
        raise ConfigError("no servers: pass HOST:PORT, several of them, or None for one of our own")
    if len(set(found)) != len(found):
        raise ConfigError(f"a server is named twice in {', '.join(found)}")
    return found


async def _embedded(stack: AsyncExitStack, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Start a server of our own. It is given the kwargs, so that the fleet need not ask for them."""
    env, num_envs = settings.get("env"), settings.get("num_envs", 1)
    if not isinstance(env, str) or not isinstance(num_envs, int):
        raise ConfigError("connect needs env=..., and num_envs=... as a number")
    server = EmbeddedServer(env, num_envs, kwargs=settings.get("kwargs"))
    await stack.enter_async_context(server)
    return server.address, {**settings, "env": env.partition("=")[0], "kwargs": {}}
