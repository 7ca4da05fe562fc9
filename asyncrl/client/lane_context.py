"""What a lane is given by its fleet (`LaneContext`), and what it tells it (`LaneOwner`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from asyncrl.client.lane_stream import WireCounters
from asyncrl.client.loop_lag import LoopLag
from asyncrl.client.seams import Clock, Rng
from asyncrl.client.timing import LaneTimers
from asyncrl.errors import ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array


class LaneOwner(Protocol):
    """What a lane tells, on the loop. Only `lane_opened` may raise, which gives the lane up."""

    def lane_opened(self, opened: pb.Opened, spec: LaneSpec) -> None: ...

    def rows_arrived(self, rows: StepRows, episode: Array, t: Array) -> None:
        """`episode`, `t` `[B]` number the transitions that the rows carry."""
        ...

    def request_refused(self, error: ServerRefused) -> None:
        """A RESET or STEP was the caller's mistake; nothing was executed."""
        ...

    def replied(self) -> None:
        """After every reply that did not end the lane, once what it brought has been told."""
        ...

    def lane_resumed(self, cause: str) -> None: ...

    def lane_event(self, event: pb.Event) -> None: ...


@dataclass
class LaneContext:
    """What all lanes of a fleet share."""

    clock: Clock
    rng: Rng
    timers: LaneTimers = field(default_factory=LaneTimers)
    counters: WireCounters = field(default_factory=WireCounters)
    duplicates: int = 0
    loop_lag: LoopLag = field(default_factory=LoopLag)  # of the lanes' timers
