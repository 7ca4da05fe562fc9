"""The seam between a lane process and the environments it steps: `Host`, and what a client wants of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.frame_stack import Encoder
from asyncrl.wire.requests import ResetRequest
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array

if TYPE_CHECKING:  # it needs gymnasium, which the nursery and the server do without
    from envserver.live_slots import LiveSlots

Progress = Callable[[int, int], None]  # environments built, of how many


@dataclass(frozen=True)
class LaneWish:
    """What one Open asks for, after the alias and its kwargs were checked."""

    env: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    num_slots: int = 1
    fleet_slots: Sequence[int] = ()
    incarnations: Sequence[int] = ()
    run_seed: int = 0
    autoreset: pb.Autoreset.ValueType = pb.SAME_STEP
    host: pb.Host.ValueType = pb.HOST_UNSPECIFIED
    per_slot_seeds: bool = False
    masked_reset: bool = False
    render: bool = False
    snapshots: bool = False


class Host(Protocol):
    """B slots of one alias, stepped together. Arrays that it returns are read before its next call."""

    spec: LaneSpec
    kind: pb.Host.ValueType
    reason: str  # why this host and not the other, for people
    autoreset: pb.Autoreset.ValueType
    per_slot_seeds: bool
    masked_reset: bool
    soft_ends: bool
    live: LiveSlots | None  # its environments, where they can be copied

    def adopt(self, wish: LaneWish) -> None:
        """Before the first reset: the slots get the fleet slots, incarnations and run seed of another wish."""
        ...

    def stack_encoder(self) -> Encoder:
        """Before the first reset, for a client that puts stacks together itself: what reads the rows of this host."""
        ...

    def reset(self, request: ResetRequest) -> StepRows:
        """First observations; rows outside the mask keep their state."""
        ...

    def step(self, action: list[Array]) -> StepRows:
        """One step of every slot with checked actions; a Python exception costs its slot, never this call."""
        ...

    def render(self, rows: Sequence[int]) -> list[Array]:
        """One u1 image `[height, width, channels]` per row."""
        ...

    def close(self) -> None: ...
