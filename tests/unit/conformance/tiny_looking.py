"""The tiny server's SIMULATE and RELEASE, with the faults that its checks have to find."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import Message, parse_body
from asyncrl.wire.outcomes import Outcome, encode_outcomes
from asyncrl.wire.snapshot_bodies import SimulateEntry, Status, decode_simulate
from asyncrl.wire.spec import LaneSpec

if TYPE_CHECKING:
    from tests.unit.conformance.tiny_server import TinyLane


def looked_ahead(lane: TinyLane, message: Message, spec: LaneSpec, faults: Collection[str]) -> tuple[int, bytes]:
    """The reply's kind and body."""
    if message.kind == pb.RELEASE:
        ids = parse_body(pb.Release, message.body).ids
        there = [name for name in ids if name in lane.saved]
        if "releases nothing" not in faults:
            for name in there:
                del lane.saved[name]
        return pb.RELEASED, pb.Released(released=len(there)).SerializeToString()
    outcomes = []
    for entry in decode_simulate(message.body, spec):
        assert isinstance(entry, SimulateEntry)
        outcomes.append(_outcome(lane, entry, faults))
    return pb.SIMULATE_RESULT, encode_outcomes(outcomes, 0)


def _outcome(lane: TinyLane, entry: SimulateEntry, faults: Collection[str]) -> Outcome:
    if entry.parent not in lane.saved:
        if "fails the whole wave" in faults:
            raise RemoteProtocolError("gone", "SNAPSHOT_GONE")
        return Outcome(Status("SNAPSHOT_GONE", "gone"))
    assert isinstance(entry.parent, int)
    slot = copy.deepcopy(lane.saved[entry.parent])
    if "looks ahead in the slot" in faults:
        slot = lane.slots[0]
    if entry.rng != pb.FROZEN or "resamples the frozen" in faults:
        seed = None if "ignores the seed of a look" in faults else entry.seed
        slot.rng = np.random.default_rng(seed)
    rewards, flags = [], []
    for choice, force in zip(entry.actions[0], entry.actions[1], strict=True):
        _, reward, flag = slot.step(int(choice), float(force[0]))
        rewards.append(reward)
        flags.append(flag)
        if flag:
            break
    if entry.keep_as is not None and not any(flags) and "keeps no child" not in faults:
        lane.saved[entry.keep_as] = slot
    shown = slot.obs()
    if entry.newest_frames and len(rewards) < len(shown):
        shown = shown[: len(rewards)] if "tells the oldest frames" in faults else shown[-len(rewards) :]
    return Outcome(Status(), rewards, flags, [shown])
