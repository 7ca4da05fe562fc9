"""Lanes that only look ahead, on env servers of their own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from asyncrl.client.connecting import addresses, connect
from asyncrl.client.fleet_lane import FleetLane
from asyncrl.errors import ConfigError
from asyncrl.run.serving import Serving
from asyncrl.search.lane_actions import check_support

LANES_PER_SERVER: Final = 2


async def simulation_lanes(
    stack: AsyncExitStack, found: Serving, servers: str | Sequence[str] | None
) -> list[FleetLane]:
    """Open for as long as the stack lasts, with the environment of `found`; none without servers for them.

    Raises what `connect` raises, and ConfigError where states cannot travel there.
    """
    if not servers:
        return []
    if found.embedded:
        # Its key is its own: whoever it is that they are sent to would refuse all of its states.
        raise ConfigError("search_servers need servers for the environments, too, all with one --snapshot-key-file")
    there = addresses(servers)
    fleet = connect(
        there,
        access=found.access,
        env=found.env,
        kwargs=found.kwargs,
        num_envs=LANES_PER_SERVER * len(there),
        snapshots=True,
        simulation=True,
        resumable=True,
    )
    lanes = (await stack.enter_async_context(fleet)).lanes
    check_support(lanes, exports=True)
    return lanes
