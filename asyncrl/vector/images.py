"""What the environments of all lanes show, in one wait.

A lane that is lost shows nothing, also if rendering is what it was lost by
(test_a_lane_that_is_lost_while_it_renders_shows_nothing).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from asyncrl.client.fleet_lane import FleetLane
from asyncrl.errors import LaneLost, ServerRefused
from asyncrl.wire.tensors import Array


async def images_of(lanes: Sequence[FleetLane], rows: Sequence[Sequence[int]], deadline_s: float) -> list[Array | None]:
    """One image per slot of `lanes`; None where its lane is lost, or it is not among the `rows` of its lane.

    Raises ServerRefused where an environment cannot render. Cancellation drops the replies and harms nothing.
    """
    async with asyncio.TaskGroup() as group:  # side by side: the deadline is one for all
        tasks = [group.create_task(_shown(lane, which, deadline_s)) for lane, which in zip(lanes, rows, strict=True)]
    images: list[Array | None] = []
    for lane, task in zip(lanes, tasks, strict=True):
        shown = task.result()
        if isinstance(shown, ServerRefused):
            raise shown
        images += [shown.get(row) for row in range(lane.num_slots)]
    return images


async def _shown(lane: FleetLane, rows: Sequence[int], deadline_s: float) -> dict[int, Array] | ServerRefused:
    """A refusal is given back: raised, it would cancel the other lanes' and come in a group."""
    if not lane.up or not len(rows):
        return {}
    try:
        return await lane.render(rows, deadline_s)
    except LaneLost:
        return {}
    except ServerRefused as error:
        return error
