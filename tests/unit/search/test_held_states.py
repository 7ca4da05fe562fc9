"""Names, places and ways of states, with lanes that only count what they are told to forget."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from asyncrl.client.fleet_lane import FleetLane
from asyncrl.client.lane_client import LaneClient
from asyncrl.search.held_states import HeldStates


class Lane:
    """Stands for a lane, its client and its snapshots."""

    def __init__(self) -> None:
        self.client = cast(LaneClient, object())
        self.forgotten: list[int] = []
        self.snapshots = self

    def client_in_use(self) -> LaneClient:
        return self.client

    def forget(self, ids: list[int]) -> None:
        self.forgotten += ids


def a_lane() -> Any:
    return Lane()


def steps(*actions: int) -> list[Any]:
    return [np.array(actions)]


def a_line(held: HeldStates, lanes: list[Any]) -> int:
    """A root in the first lane, and states 1, 2, 3, one action further each, in the lanes in turn."""
    [root] = held.root_names(1)
    held.add(root, lanes[0], 100, lanes[0].client)
    for name, parent in ((1, root), (2, 1), (3, 2)):
        lane = lanes[name % len(lanes)]
        held.add(name, lane, 100 + name, lane.client)
        held.add_way(name, parent, steps(name))
    return root


def test_a_state_that_is_there_is_begun_with() -> None:
    """Without a detour, however it was reached itself."""
    lane = a_lane()
    held = HeldStates()
    a_line(held, [lane])
    found = held.reach(3, steps(7))
    assert found is not None
    assert (found.parent, found.detour, found.actions[0].tolist()) == (3, 0, [7])
    assert held.lane_of(3) is lane
    assert (held.reference(3), held.num_bytes(3)) == (103, 0)


def test_a_lost_state_is_reached_from_the_nearest_one_left() -> None:
    """A lane that is served by another client than before has nothing of what it had."""
    first, second = a_lane(), a_lane()
    held = HeldStates()
    root = a_line(held, [first, second])  # 1 and 3 in the second
    second.client = object()
    found = held.reach(3, steps(7))
    assert found is not None
    assert (found.parent, found.detour, found.actions[0].tolist()) == (2, 1, [3, 7])
    first.client = object()
    assert held.reach(3, steps(7)) is None
    held.forget([root])
    held.add_signed(root, b"state")
    found = held.reach(3, steps(7))
    assert found is not None
    assert (found.parent, found.detour, found.actions[0].tolist()) == (root, 3, [1, 2, 3, 7])
    assert (held.lane_of(root), held.reference(root), held.num_bytes(root)) == (None, b"state", 5)


def test_what_is_forgotten_is_forgotten_by_its_lane() -> None:
    """Once; states that were kept count for their lane, roots do not."""
    first, second = a_lane(), a_lane()
    held = HeldStates()
    root = a_line(held, [first, second])
    assert (held.num_in(first), held.num_in(second), len(held)) == (1, 2, 4)
    assert held.forget([3, root]) == {cast(FleetLane, first), cast(FleetLane, second)}
    assert (first.forgotten, second.forgotten) == ([100], [103])
    assert (held.num_in(first), held.num_in(second), len(held)) == (1, 1, 2)
    assert held.forget([3, root]) == set()
    assert (first.forgotten, second.forgotten) == ([100], [103])
    assert held.root_names(2) == range(root - 1, root - 3, -1)
