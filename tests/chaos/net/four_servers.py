"""What the tests here share: four env servers in namespaces of their own, token and TLS, and a measure of rates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.rig.census import census
from tests.rig.netns import Namespace, namespaces
from tests.rig.processes import EnvServerProcess, ledger_option

NUM_SERVERS: Final = 4
LANES_EACH: Final = 2
SLOTS: Final = 2  # of a lane
NUM_LANES: Final = NUM_SERVERS * LANES_EACH
NUM_ENVS: Final = NUM_LANES * SLOTS
# Most of the time goes by in sleep: the rate is the simulator's, not that of this machine's two cores.
STEP_S: Final = 0.05
WINDOW_S: Final = 2.0  # of one measurement
KEPT: Final = 0.95


@dataclass(frozen=True)
class Machines:
    """Namespaces, the server that runs in each, and the files that let a client in."""

    namespaces: tuple[Namespace, ...]
    servers: list[EnvServerProcess]
    token_file: str
    tls_ca: str

    @property
    def addresses(self) -> list[str]:
        return [server.address for server in self.servers]


@asynccontextmanager
async def four_servers(directory: Path) -> AsyncIterator[Machines]:
    """They run, each with room for its lanes and no more; a census is taken before and after."""
    pytest.importorskip("cryptography")
    from envserver.credentials import new_certificates, new_token

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(census())
        made = stack.enter_context(namespaces(NUM_SERVERS))
        token, tls = directory / "token", directory / "tls"
        new_certificates(str(tls), [each.address for each in made])
        new_token(str(token), "learner")
        files = {"token-file": token, "tls-cert": tls / "server.pem", "tls-key": tls / "server.key"}
        options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
        servers = [
            EnvServerProcess(
                directory,
                num_envs=LANES_EACH * SLOTS,
                envs=[ledger_option(step_s=STEP_S)],
                options=options,
                listen=f"{each.address}:0",
                name=f"server{number}",
                prefix=each.prefix,
            )
            for number, each in enumerate(made)
        ]
        async with asyncio.TaskGroup() as group:
            for server in servers:
                group.create_task(stack.enter_async_context(server))
        yield Machines(made, servers, str(token), str(tls / "ca.pem"))


async def lanes_keep_their_rate(
    rate: Callable[[list[int], float], Awaitable[float]], lanes: list[int], before: float
) -> float:
    """The share of `before` that these lanes keep now: of the best of four windows, as the machine is shared."""
    kept = 0.0
    for _ in range(4):
        kept = max(kept, await rate(lanes, WINDOW_S) / before)
        if kept >= KEPT:
            break
    assert kept >= KEPT, f"the other lanes kept {kept:.0%} of {before:.0f} transitions/s"
    return kept
