"""`LaneSpec`: what a lane's arrays look like, and the hash by which two servers are compared.

Invariants: a spec round-trips through the wire with its hash (test_a_spec_and_its_hash_survive_the_wire); one whose
parts do not fit each other is refused (test_specs_that_make_no_sense_are_refused).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spaces import SpaceSpec

MAX_MASK_SIZE: Final = 1 << 20


@dataclass(frozen=True)
class LaneSpec:
    """Everything about an alias that decides how its bytes are read, and by which dynamics they came."""

    env: str
    observation: SpaceSpec
    action: SpaceSpec
    mask_size: int = 0
    stack_leaf: int | None = None
    max_episode_steps: int = 0
    render_mode: str = ""
    render_fps: float = 0.0
    build: str = ""
    reward_low: float = 0.0  # both 0: unknown
    reward_high: float = 0.0

    @property
    def stack_depth(self) -> int:
        """Frames in a stack; 1 where nothing is stacked."""
        return 1 if self.stack_leaf is None else self.observation.leaves[self.stack_leaf].shape[0]

    def to_proto(self) -> pb.Spec:
        return pb.Spec(
            env=self.env,
            observation=self.observation.to_proto(),
            action=self.action.to_proto(),
            mask_size=self.mask_size,
            rows_per_slot=1,
            stack_leaf=0 if self.stack_leaf is None else self.stack_leaf + 1,
            max_episode_steps=self.max_episode_steps,
            render_mode=self.render_mode,
            render_fps=self.render_fps,
            build=self.build,
            reward_low=self.reward_low,
            reward_high=self.reward_high,
        )

    @staticmethod
    def from_proto(message: pb.Spec) -> LaneSpec:
        observation = SpaceSpec.from_proto(message.observation)
        if message.rows_per_slot > 1:
            raise RemoteProtocolError("several rows per slot are reserved for a later version", "UNSUPPORTED")
        if message.stack_leaf > len(observation.leaves):
            raise RemoteProtocolError(f"stack_leaf {message.stack_leaf} names no leaf")
        if message.stack_leaf and not any(observation.leaves[message.stack_leaf - 1].shape[:1]):
            raise RemoteProtocolError(f"stack_leaf {message.stack_leaf} has no axis of frames")
        if message.mask_size > MAX_MASK_SIZE:
            raise RemoteProtocolError(f"a mask over {message.mask_size} actions; {MAX_MASK_SIZE} are possible")
        return LaneSpec(
            env=message.env,
            observation=observation,
            action=SpaceSpec.from_proto(message.action),
            mask_size=message.mask_size,
            stack_leaf=message.stack_leaf - 1 if message.stack_leaf else None,
            max_episode_steps=message.max_episode_steps,
            render_mode=message.render_mode,
            render_fps=message.render_fps,
            build=message.build,
            reward_low=message.reward_low,
            reward_high=message.reward_high,
        )

    def hash(self) -> bytes:
        """SHA-256 of the wire form."""
        return hashlib.sha256(self.to_proto().SerializeToString(deterministic=True)).digest()
