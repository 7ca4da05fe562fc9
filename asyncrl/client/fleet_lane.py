"""`FleetLane`: a lane that outlives the lanes that serve it, and `Arrival`, what it brings.

Invariants: rows of one FleetLane are legal in order across every loss and replacement
(test_rows_stay_legal_across_lanes); the incarnation of a slot grows by one each time its environment is created anew,
by the server or by the fleet (test_incarnations_count_every_new_environment); a server that drains is left as soon as
every reply that was due has come, whatever it answered (test_a_draining_server_is_left_without_loss,
test_any_last_reply_lets_the_lane_move_off).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from asyncrl.client.fleet_config import FleetEvent, FleetStats
from asyncrl.client.lane_client import LaneClient
from asyncrl.client.refusals import lane_lost
from asyncrl.client.snapshots import LaneSnapshots
from asyncrl.errors import AsyncRLError, LaneLost, ServerRefused
from asyncrl.wire import tensors
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import parse_body
from asyncrl.wire.flags import RowTracker
from asyncrl.wire.requests import ResetRequest
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array

# Nobody can say beforehand how large images are.
RENDER_BYTES: Final = 64 * 1024 * 1024


@dataclass(slots=True)
class Arrival:
    """Either `rows`, or `lost`: the lane is gone, and its next rows come from a replacement.

    `incarnation`, `episode`, `t` `[B]` (i8) name the transitions that the rows carry: with run_id and fleet slot they
    are unique in a run. Rows with NO_TRANSITION carry none.
    """

    lane: FleetLane
    rows: StepRows | None
    lost: LaneLost | None
    incarnation: Array
    episode: Array
    t: Array
    refused: ServerRefused | None = None


class ArrivalSink(Protocol):
    """The fleet as its lanes see it."""

    stats: FleetStats

    def arrived(self, arrival: Arrival) -> None: ...

    def tell(self, event: FleetEvent) -> None: ...

    def lane_spec(self, opened: pb.Opened, spec: LaneSpec, address: str) -> None:
        """Raises SpecMismatch for another environment than that of the fleet's other lanes."""
        ...


class FleetLane:
    """B slots of a fleet: stable identity, whoever serves them.

    `incarnation`, `episode`, `t` `[B]` are those of the last arrival that `Fleet.recv` gave out for this lane.
    """

    def __init__(self, index: int, fleet_slots: Sequence[int], incarnations: Sequence[int], sink: ArrivalSink) -> None:
        self.index = index
        self.fleet_slots: Array = np.asarray(fleet_slots, np.int64)
        self.num_slots = len(fleet_slots)
        self.address = ""
        self.spec: LaneSpec | None = None
        self.opened: pb.Opened | None = None
        # Replaced, never written into: arrivals share it.
        self.next_incarnation: Array = np.asarray(incarnations, np.int64)
        self.incarnation = self.next_incarnation
        self.episode: Array = np.full(self.num_slots, -1, np.int64)
        self.t: Array = np.zeros(self.num_slots, np.int64)
        self.tracker = RowTracker(self.num_slots)
        self.client: LaneClient | None = None
        self.on_opened: Callable[[], None] = lambda: None
        self.snapshots = LaneSnapshots(self)
        self._sink = sink
        self._draining = False
        self._unread_losses = 0

    def __repr__(self) -> str:
        slots = f"slots {self.fleet_slots[0]}..{self.fleet_slots[-1]}" if self.num_slots else "simulation"
        return f"<FleetLane {self.index} {slots} at {self.address or '-'}{'' if self.up else ' (down)'}>"

    # ------------------------------------------------------------------ requests

    @property
    def up(self) -> bool:
        """Open, and taking requests."""
        return self.opened is not None and not self._draining

    @property
    def in_flight(self) -> int:
        """Requests without a reply."""
        return 0 if self.client is None else self.client.in_flight

    @property
    def can_step(self) -> bool:
        """Whether `step` would send, and within what the server allows."""
        client = self.client_in_use()
        return client is not None and client.can_request

    def step(self, action: Sequence[Array]) -> bool:
        """Send one action array `[B, *leaf.shape]` per action leaf; its rows come as an arrival.

        False if the lane is not up, or was replaced and its loss has not been received yet: the action, which was
        chosen for rows of the lost lane, is dropped, and an arrival with `lost` is or will be in the queue.
        """
        client = self._usable()
        if client is None:
            return False
        client.step(action)
        return True

    def reset(
        self,
        mask: Array | None = None,
        seeds: Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> bool:
        """Reset the rows of `mask` `[B]`, or all of them. False if the lane is not up, as in `step`."""
        client = self._usable()
        if client is None:
            return False
        client.reset(ResetRequest(mask, None if seeds is None else list(seeds), options))
        return True

    async def render(self, rows: Sequence[int] | None = None, deadline_s: float | None = None) -> dict[int, Array]:
        """Images (u1 `[height, width, channels]`) by row. None: of all rows; within `other_s` of the timers.

        Raises ServerRefused where the environment cannot render, LaneLost if the lane goes. Cancellation drops the
        reply and harms nothing.
        """
        client = self._usable()
        if client is None:
            raise lane_lost("down", f"lane {self.index} is not up")
        body = pb.Render(rows=b"" if rows is None else np.asarray(rows, "<u4").tobytes()).SerializeToString()
        images = parse_body(pb.Rendered, await client.ask(pb.RENDER, body, RENDER_BYTES, deadline_s)).images
        return {
            image.row: tensors.from_bytes(
                image.pixels, np.dtype(np.uint8), (image.height, image.width, image.channels), "image"
            )
            for image in images
        }

    def _usable(self) -> LaneClient | None:
        client = self.client_in_use()
        if client is None:
            self._sink.stats.dropped_actions += 1
        return client

    def client_in_use(self) -> LaneClient | None:
        """What sends the caller's requests; None while there is nobody, or somebody whom the caller does not know."""
        # A caller that has not received the loss yet means the environments that are gone.
        client = self.client if self.up and not self._unread_losses else None
        return None if client is None or client.is_over else client

    # ------------------------------------------------------------------ what the fleet does with it

    def attach(self, client: LaneClient, address: str) -> None:
        self.client, self.address, self._draining = client, address, False

    def detach(self) -> None:
        self.client, self.opened = None, None

    def lost(self, error: LaneLost, in_flight: int) -> None:
        """The lane that served these slots is gone; each slot will be created anew."""
        self._sink.stats.lost_in_flight += in_flight
        self._tell("lane_lost", error.cause, error.text)
        if not self.num_slots:  # no rows, no arrivals: whoever waits for a wave hears of the loss
            return
        self._unread_losses += 1
        self._sink.arrived(self._arrival(None, error, self.tracker.episode.copy(), self.tracker.t.copy()))
        self.next_incarnation = self.next_incarnation + 1

    def loss_received(self) -> None:
        """The caller knows now: what it sends from here on is meant for the replacement."""
        self._unread_losses -= 1

    def _arrival(self, rows: StepRows | None, lost: LaneLost | None, episode: Array, t: Array) -> Arrival:
        return Arrival(self, rows, lost, self.next_incarnation, episode, t)

    def _tell(self, kind: str, cause: str = "", text: str = "", row: int | None = None) -> None:
        self._sink.tell(FleetEvent(kind, self.index, self.address, cause, text, row))

    # ------------------------------------------------------------------ LaneOwner

    def lane_opened(self, opened: pb.Opened, spec: LaneSpec) -> None:
        self._sink.lane_spec(opened, spec, self.address)
        self._sink.stats.reopened += self.spec is not None
        self.opened, self.spec = opened, spec
        self._tell("lane_opened", text=opened.host_reason)
        self.on_opened()

    def rows_arrived(self, rows: StepRows, episode: Array, t: Array) -> None:
        if rows.rebuilt:
            self._count_rebuilt(rows)
        self._sink.stats.arrivals += 1
        self._sink.arrived(self._arrival(rows, None, episode, t))

    def request_refused(self, error: ServerRefused) -> None:
        self._tell("request_refused", error.code, error.text)
        arrival = self._arrival(None, None, self.tracker.episode.copy(), self.tracker.t.copy())
        arrival.refused = error
        self._sink.arrived(arrival)

    def replied(self) -> None:
        self.snapshots.flush()
        if self._draining:
            self._move_off()

    def lane_resumed(self, cause: str) -> None:
        self._tell("stream_resumed", cause)

    def lane_event(self, event: pb.Event) -> None:
        if event.kind == pb.BUILDING:
            self._sink.tell(
                FleetEvent("building", self.index, self.address, text=event.text, step=event.step, total=event.total)
            )
        elif event.kind == pb.DRAINING:
            self._draining = True
            self._tell("draining", text=event.text)
            self._move_off()
        elif event.kind == pb.LOG:
            self._tell("server_log", text=event.text)
        elif event.kind == pb.SLOT_QUARANTINED:
            self._tell("slot_quarantined", text=event.text, row=event.row)
        # SLOT_REBUILT: the rows say it too, at the right place in their order.

    def _move_off(self) -> None:
        """The server is about to stop: leave it as soon as every reply that is due has come."""
        if self.client is not None and not self.client.in_flight:
            self.client.leave(lane_lost("drained", f"{self.address}: the server is stopping"))

    def _count_rebuilt(self, rows: StepRows) -> None:
        incarnation = self.next_incarnation.copy()
        for rebuilt in rows.rebuilt:
            incarnation[rebuilt.row] = max(rebuilt.incarnation, incarnation[rebuilt.row] + 1)
            self._tell("slot_rebuilt", rebuilt.code, rebuilt.text, rebuilt.row)
        self.next_incarnation = incarnation


def as_lane_lost(error: AsyncRLError) -> LaneLost:
    """Any end of an open lane, as the loss that its arrival carries."""
    if isinstance(error, LaneLost):
        return error
    lost = lane_lost(type(error).__name__, str(error))
    lost.__cause__ = error
    return lost
