"""`HeldStates`: which lane holds which state of a search, and the way to those that it holds no more.

A state has the name that the search gave it; roots have names below 0. It is in a lane's store, or, of roots only, a
signed array of bytes that travels. The way to a state is the state that its simulation began with, and the actions.

Invariants: a state whose lane was lost is reached anew from the nearest one that is left
(test_a_lost_lane_fails_its_expansions); what was forgotten is in no store
(test_no_snapshot_is_left_of_a_cancelled_search).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from asyncrl.client.fleet_lane import FleetLane
from asyncrl.client.lane_client import LaneClient
from asyncrl.records import Array


class _Place(NamedTuple):
    """Where a state is held: the lane under this id, for as long as this client serves it."""

    lane: FleetLane
    id: int
    client: LaneClient | None

    @property
    def is_there(self) -> bool:
        return self.client is not None and self.client is self.lane.client_in_use()


class _Way(NamedTuple):
    """How a state was reached: from another one by actions, per leaf [k, *shape] as the search gives them."""

    parent: int
    actions: Sequence[Array]


class Reached(NamedTuple):
    """A state that is there, and the actions from it to the end of what was asked, `detour` of them more than asked."""

    parent: int
    actions: Sequence[Array]
    detour: int


class HeldStates:
    """Loop only."""

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}
        self._signed: dict[int, bytes] = {}
        self._ways: dict[int, _Way] = {}
        self._num_roots = 0
        self._num_held: Counter[FleetLane] = Counter()  # but roots

    def __len__(self) -> int:
        return len(self._places) + len(self._signed)

    # ------------------------------------------------------------------ into

    def root_names(self, count: int) -> range:
        """New ones."""
        first = -self._num_roots - 1
        self._num_roots += count
        return range(first, first - count, -1)

    def add_signed(self, name: int, state: bytes) -> None:
        self._signed[name] = state

    def add(self, name: int, lane: FleetLane, id: int, client: LaneClient | None) -> None:
        """A lane's store has it, since this client asked for it."""
        self._places[name] = _Place(lane, id, client)
        self._num_held[lane] += name > 0

    def add_way(self, name: int, parent: int, actions: Sequence[Array]) -> None:
        self._ways[name] = _Way(parent, actions)

    # ------------------------------------------------------------------ out of

    def forget(self, names: Iterable[int]) -> set[FleetLane]:
        """Lanes that have more room now; it does not wait for them."""
        by_lane: dict[FleetLane, list[int]] = {}
        for name in names:
            self._signed.pop(name, None)
            self._ways.pop(name, None)
            place = self._places.pop(name, None)
            if place is not None:
                by_lane.setdefault(place.lane, []).append(place.id)
                self._num_held[place.lane] -= name > 0
        for lane, ids in by_lane.items():
            lane.snapshots.forget(ids)
        return set(by_lane)

    # ------------------------------------------------------------------ where

    def reach(self, parent: int, actions: Sequence[Array]) -> Reached | None:
        """Where to begin instead of `parent`, which may be gone. None: nothing is left to begin with."""
        detour = 0
        while parent not in self._signed:
            place = self._places.get(parent)
            if place is not None and place.is_there:
                break
            way = self._ways.get(parent)
            if way is None:
                return None
            parent, detour = way.parent, detour + len(way.actions[0])
            actions = [np.concatenate(both) for both in zip(way.actions, actions, strict=True)]
        return Reached(parent, actions, detour)

    def lane_of(self, name: int) -> FleetLane | None:
        """None: any lane takes it."""
        place = self._places.get(name)
        return None if place is None else place.lane

    def reference(self, name: int) -> int | bytes:
        """As an entry of a wave names its beginning."""
        place = self._places.get(name)
        return self._signed[name] if place is None else place.id

    def num_bytes(self, name: int) -> int:
        """That travel with an entry which begins there."""
        return len(self._signed.get(name, b""))

    def num_in(self, lane: FleetLane) -> int:
        """States that were kept there, but roots."""
        return self._num_held[lane]
