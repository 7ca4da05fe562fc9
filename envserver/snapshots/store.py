"""Snapshots of one lane, by the ids that the client chose; bounded in bytes and in number.

Invariants: what is held never exceeds the quota (test_the_quota_is_never_exceeded); an id that is taken keeps its
snapshot (test_a_repeated_id_finds_its_own); everything comes back (test_release_gives_every_byte_back).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from asyncrl.wire.tensors import Array


class QuotaExceeded(Exception):
    """There is no room for another snapshot; the text says how much there is."""


@dataclass(frozen=True, slots=True)
class Position:
    """What a client knows of a slot besides its observations to come; arrays are never written into."""

    obs: list[Array] | None  # per leaf `[*shape]`; None: the codec remembers it
    mask: Array | None  # b1 `[mask_size]`
    to_play: int | None
    game_return: float  # of the game so far
    game_length: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state. `origin`: row and incarnation whose episode it comes from; None for one that was imported."""

    state: Any
    nbytes: int
    position: Position
    origin: tuple[int, int] | None


class SnapshotStore:
    """At most `max_count` snapshots of at most `max_bytes` together."""

    def __init__(self, max_bytes: int, max_count: int) -> None:
        self._max_bytes, self._max_count = max_bytes, max_count
        self._held: dict[int, Snapshot] = {}
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, snapshot_id: int) -> bool:
        return snapshot_id in self._held

    def get(self, snapshot_id: int) -> Snapshot | None:
        """None where there is none of that id (any more)."""
        return self._held.get(snapshot_id)

    def check_room(self, nbytes: int) -> None:
        """QuotaExceeded unless a snapshot of about that size fits."""
        if self.held_bytes + nbytes > self._max_bytes:
            raise QuotaExceeded(
                f"{self.held_bytes} of {self._max_bytes} bytes are taken, {nbytes} wanted: release snapshots, or let "
                "the server have a larger --quota snapshot_bytes"
            )
        if len(self._held) >= self._max_count:
            raise QuotaExceeded(f"{self._max_count} snapshots are held; that is all there may be")

    def put(self, snapshot_id: int, snapshot: Snapshot) -> Snapshot:
        """Hold it, unless the id has one already, which is then given back. QuotaExceeded where there is no room."""
        there = self._held.get(snapshot_id)
        if there is not None:
            return there
        self.check_room(snapshot.nbytes)
        self._held[snapshot_id] = snapshot
        self.held_bytes += snapshot.nbytes
        return snapshot

    def release(self, ids: Iterable[int]) -> int:
        """Forget those that there are; how many."""
        count = 0
        for snapshot_id in ids:
            gone = self._held.pop(snapshot_id, None)
            if gone is not None:
                self.held_bytes -= gone.nbytes
                count += 1
        return count

    def release_all(self) -> int:
        return self.release(list(self._held))

    def drop_origin(self, row: int, incarnation: int) -> None:
        """The environment of that slot broke: what came from it is not to be trusted."""
        self.release([key for key, held in self._held.items() if held.origin == (row, incarnation)])
