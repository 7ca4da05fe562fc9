"""The spec of a lane over the wire, its hash, and parts that do not fit each other."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.spec import MAX_MASK_SIZE, LaneSpec
from tests.unit.wire.strategies import space_specs

PONG = LaneSpec(
    env="pong",
    observation=SpaceSpec((Node(pb.BOX, dtype=np.dtype("<u1"), shape=(4, 84, 84)),)),
    action=SpaceSpec((Node(pb.DISCRETE, dtype=np.dtype("<i8"), n=6),)),
    mask_size=6,
    stack_leaf=0,
    max_episode_steps=27_000,
    render_mode="rgb_array",
    render_fps=60.0,
    build="ale 0.11",
    reward_low=-1.0,
    reward_high=1.0,
)


@given(space_specs(), space_specs(), st.integers(0, MAX_MASK_SIZE), st.text("abc", max_size=3))
def test_a_spec_and_its_hash_survive_the_wire(observation: SpaceSpec, action: SpaceSpec, mask: int, text: str) -> None:
    """A random spec that went through bytes is equal; its hash is SHA-256 of those bytes."""
    spec = replace(PONG, env=text, observation=observation, action=action, mask_size=mask, stack_leaf=None)
    data = spec.to_proto().SerializeToString(deterministic=True)
    back = LaneSpec.from_proto(pb.Spec.FromString(data))
    assert back == spec
    assert back.hash() == spec.hash() == hashlib.sha256(data).digest()


@pytest.mark.parametrize(
    "change",
    [
        {"env": "other"},
        {"mask_size": 0},
        {"stack_leaf": None},
        {"max_episode_steps": 1},
        {"render_mode": ""},
        {"render_fps": 30.0},
        {"build": "ale 0.12"},
        {"reward_low": -2.0},
        {"reward_high": 2.0},
    ],
)
def test_every_part_counts_in_the_hash(change: dict[str, Any]) -> None:
    """Two servers that differ in any part do not agree."""
    other = replace(PONG, **change)
    assert other.hash() != PONG.hash()
    assert LaneSpec.from_proto(other.to_proto()) == other


def test_what_nobody_knows_is_zero_on_the_wire() -> None:
    """A spec of spaces alone has no step limit, no stack and no frames per second."""
    bare = LaneSpec("x", PONG.observation, PONG.action).to_proto()
    assert (bare.max_episode_steps, bare.stack_leaf, bare.render_fps, bare.mask_size) == (0, 0, 0.0, 0)


def test_the_depth_of_a_stack() -> None:
    """The first axis of the stacked leaf; 1 where nothing is stacked."""
    assert PONG.stack_depth == 4
    assert replace(PONG, stack_leaf=None).stack_depth == 1


def box(*shape: int) -> pb.Space:
    return pb.Space(nodes=[pb.Node(kind=pb.BOX, parent=-1, dtype=pb.U1, shape=shape)])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"rows_per_slot": 2}, "UNSUPPORTED"),
        ({"stack_leaf": 2}, "BAD_FRAME"),
        ({"stack_leaf": 1, "observation": box()}, "BAD_FRAME"),
        ({"stack_leaf": 1, "observation": box(0, 3)}, "BAD_FRAME"),
        ({"mask_size": MAX_MASK_SIZE + 1}, "BAD_FRAME"),
        ({"observation": pb.Space()}, "BAD_FRAME"),
        ({"action": pb.Space()}, "BAD_FRAME"),
    ],
)
def test_specs_that_make_no_sense_are_refused(change: dict[str, Any], code: str) -> None:
    """Several rows a slot, a stack that is none, a mask over everything, a missing space."""
    fields: dict[str, Any] = {"observation": box(2, 2), "action": box(), "rows_per_slot": 1}
    LaneSpec.from_proto(pb.Spec(**fields))
    with pytest.raises(RemoteProtocolError) as caught:
        LaneSpec.from_proto(pb.Spec(**fields | change))
    assert caught.value.code == code
