"""`asyncrl top`: what env servers say of themselves, once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from asyncrl.cli.access import Reach
from asyncrl.client.connecting import addresses
from asyncrl.client.grpc_transport import GrpcConnector
from asyncrl.client.loop_factory import new_event_loop
from asyncrl.errors import AsyncRLError
from asyncrl.wire._generated import env_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class Top(Reach):
    """Shows capacity, use and round-trip time of env servers. On a terminal until Ctrl-C, else once."""

    servers: tyro.conf.Positional[tuple[str, ...]]
    """HOST:PORT of each, or one list with commas."""

    every: Annotated[float, tyro.conf.arg(metavar="S")] = 1.0
    """Seconds between two looks."""

    once: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Look once and exit; status 1 if a server does not answer."""


@dataclass(frozen=True)
class Look:
    """One look at one server."""

    address: str
    reply: pb.DescribeReply | None
    rtt_s: float
    error: str = ""


def run(arguments: Sequence[str]) -> int:
    options = tyro.cli(Top, prog="asyncrl top", args=list(arguments))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_watch(options))


async def _watch(options: Top) -> int:
    connectors = [GrpcConnector(address, options.access) for address in addresses(",".join(options.servers))]
    console = Console(highlight=False)
    try:
        looks = await _look(connectors)
        if options.once or not console.is_terminal:
            console.print(_table(looks))
            return 1 if any(look.reply is None for look in looks) else 0
        with Live(_table(looks), console=console, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(options.every)
                live.update(_table(await _look(connectors)), refresh=True)
    finally:
        for connector in connectors:
            await connector.close()


async def _look(connectors: Sequence[GrpcConnector]) -> list[Look]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_look_at(connector)) for connector in connectors]
    return [task.result() for task in tasks]


async def _look_at(connector: GrpcConnector) -> Look:
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        reply = await connector.describe(pb.DescribeRequest())
    except AsyncRLError as error:
        return Look(connector.address, None, 0.0, str(error))
    return Look(connector.address, reply, loop.time() - began)


def _table(looks: Sequence[Look]) -> Table:
    table = Table(title="asyncrl top", title_justify="left")
    for heading in ("server", "environments", "used", "capacity", "cores", "advised lanes", "RTT", "state"):
        table.add_column(heading, justify="left" if heading in ("server", "environments", "state") else "right")
    for look in looks:
        reply = look.reply
        if reply is None:
            table.add_row(escape(look.address), *[""] * 6, f"[red]{escape(look.error.splitlines()[0])}[/]")
            continue
        state = "[yellow]draining[/]" if reply.draining else "[green]serving[/]"
        names = ", ".join(offer.alias for offer in reply.envs)
        numbers = [str(value) for value in (reply.used, reply.capacity, reply.cores, reply.advised_lanes or "-")]
        table.add_row(escape(look.address), escape(names), *numbers, f"{look.rtt_s * 1e3:.1f} ms", state)
    return table
