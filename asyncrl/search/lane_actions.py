"""What the lanes of a fleet offer to a search: whether they hold states, and which actions there are.

A search counts actions from 0. Invariant: what reaches an environment has its own numbers and dtypes
(test_actions_are_counted_from_zero).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from asyncrl.client.fleet_lane import FleetLane
from asyncrl.errors import ConfigError
from asyncrl.records import Array
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spec import LaneSpec


def check_support(lanes: Iterable[FleetLane], *, exports: bool = False) -> None:
    """ConfigError where the environments of these lanes have no states to hold; or, with `exports`, none to give away.

    The lanes have been opened.
    """
    for lane in lanes:
        why = "" if lane.opened is None else lane.opened.host_reason
        if lane.snapshots.support == "none":
            raise ConfigError(f"{lane.address} cannot look ahead in this environment: {why or 'it holds no states'}")
        if exports and not lane.snapshots.exports:
            raise ConfigError(
                f"states cannot leave or enter {lane.address}: give all env servers the same --snapshot-key-file"
            )


def num_actions(spec: LaneSpec) -> int:
    """How many actions there are; 0 where they cannot be enumerated."""
    nodes = spec.action.nodes
    return nodes[0].n if nodes[0].kind == pb.DISCRETE else 0


def first_action(spec: LaneSpec) -> int:
    """The environment's number of the action that is counted as 0."""
    return spec.action.nodes[0].start


def every_action(spec: LaneSpec) -> Array | None:
    """b1 [A]"""
    count = num_actions(spec)
    return np.ones(count, np.bool_) if count else None


def wire_actions(actions: Sequence[Array], spec: LaneSpec) -> list[Array]:
    """Per leaf [k, *shape], in the environment's numbering and the dtypes of the wire."""
    leaves = spec.action.leaves
    if not actions:
        return [np.empty((0, *leaf.shape), leaf.dtype) for leaf in leaves]
    if num_actions(spec):
        return [(actions[0] + first_action(spec)).astype(leaves[0].dtype)]
    return [np.asarray(array).astype(leaf.dtype) for array, leaf in zip(actions, leaves, strict=True)]
