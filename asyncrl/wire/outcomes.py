"""What a wave of look-ahead came to: an outcome for each entry at the server, arrays over all of them at the client.

Invariants: what one side encodes the other decodes to equal values (test_outcomes_round_trip); outcomes that make no
sense, of any bytes, are refused (test_any_bytes_are_outcomes_or_refused).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire import tensors
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import parse_body
from asyncrl.wire.flags import TERMINATED, TRUNCATED
from asyncrl.wire.snapshot_bodies import Status, status_from_proto, status_to_proto
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.tensors import Array

_F8: Final = np.dtype("<f8")
_U1: Final = np.dtype("<u1")
_LEGAL_FLAGS: Final = frozenset({0, TERMINATED, TRUNCATED})


@dataclass(slots=True)
class Outcomes:
    """One wave of N entries, of up to K steps each. Rows of entries that failed, and what they lack, are zeros."""

    status: list[Status]
    steps: Array  # i8 [N]
    rewards: Array  # f8 [N, K]
    flags: Array  # u1 [N, K]; 0, TERMINATED or TRUNCATED, which only the last step of an entry may have
    obs: list[Array]  # per leaf [N, *shape], after the last step
    has_obs: Array  # b1 [N]
    mask: Array | None  # b1 [N, mask_size]; None: everything is allowed everywhere
    to_play: Array | None  # i4 [N]; None: one player
    rollout_return: Array  # f8 [N]
    rollout_steps: Array  # i8 [N]
    rollout_ended: Array  # b1 [N]
    store_bytes: int = 0

    def __len__(self) -> int:
        return len(self.status)

    @property
    def ok(self) -> Array:
        """b1 `[N]`."""
        return np.fromiter((status.ok for status in self.status), np.bool_, len(self.status))

    @property
    def terminated(self) -> Array:
        """b1 `[N]`: the episode ended by its task."""
        return np.asarray((self.flags & TERMINATED).any(axis=1))

    @property
    def truncated(self) -> Array:
        """b1 `[N]`: the episode was broken off."""
        return np.asarray((self.flags & TRUNCATED).any(axis=1))


@dataclass(slots=True)
class Outcome:
    """What the lane says of one entry."""

    status: Status = field(default_factory=Status)
    rewards: Sequence[float] = ()
    flags: Sequence[int] = ()
    obs: Sequence[Array] = ()  # per leaf [*shape]; empty where it was not wanted
    mask: Array | None = None  # b1 [mask_size]
    to_play: int | None = None
    rollout_return: float = 0.0
    rollout_steps: int = 0
    rollout_ended: bool = False


def encode_outcomes(outcomes: Sequence[Outcome], store_bytes: int) -> bytes:
    """The body of SIMULATE_RESULT."""
    return pb.SimulateResult(outcomes=map(_outcome_to_proto, outcomes), store_bytes=store_bytes).SerializeToString()


def _outcome_to_proto(outcome: Outcome) -> pb.SimulateOutcome:
    return pb.SimulateOutcome(
        status=status_to_proto(outcome.status),
        steps=len(outcome.rewards),
        rewards=np.array(outcome.rewards, _F8).tobytes(),
        flags=bytes(outcome.flags),
        obs=[tensors.to_bytes(leaf) for leaf in outcome.obs],
        mask=b"" if outcome.mask is None else tensors.to_bytes(outcome.mask),
        to_play=outcome.to_play,
        rollout_return=outcome.rollout_return,
        rollout_steps=outcome.rollout_steps,
        rollout_ended=outcome.rollout_ended,
    )


def decode_outcomes(body: bytes, spec: LaneSpec, asked: Sequence[int]) -> Outcomes:
    """The outcomes of a wave whose entries have so many actions, as arrays of the caller's own."""
    message = parse_body(pb.SimulateResult, body)
    outcomes, num_entries = message.outcomes, len(asked)
    if len(outcomes) != num_entries:
        raise RemoteProtocolError(f"{len(outcomes)} outcomes for a wave of {num_entries}")
    steps = np.fromiter((each.steps for each in outcomes), np.int64, num_entries)
    if (steps > np.asarray(asked, np.int64)).any():
        raise RemoteProtocolError("an outcome of more steps than were asked for")
    longest = int(steps.max(initial=0))
    found = Outcomes(
        status=[status_from_proto(each.status) for each in outcomes],
        steps=steps,
        rewards=np.zeros((num_entries, longest)),
        flags=np.zeros((num_entries, longest), np.uint8),
        obs=[],
        has_obs=np.fromiter((bool(each.obs) for each in outcomes), np.bool_, num_entries),
        mask=None,
        to_play=None,
        rollout_return=np.fromiter((each.rollout_return for each in outcomes), np.float64, num_entries),
        rollout_steps=np.fromiter((each.rollout_steps for each in outcomes), np.int64, num_entries),
        rollout_ended=np.fromiter((each.rollout_ended for each in outcomes), np.bool_, num_entries),
        store_bytes=message.store_bytes,
    )
    for number, each in enumerate(outcomes):
        _read_steps(number, each, found)
    _read_obs(outcomes, found, spec)
    _read_masks(outcomes, found, spec)
    if any(each.HasField("to_play") for each in outcomes):
        found.to_play = np.fromiter((each.to_play for each in outcomes), np.int32, num_entries)
    return found


def _read_steps(number: int, outcome: pb.SimulateOutcome, into: Outcomes) -> None:
    count = outcome.steps
    if not count and not outcome.rewards and not outcome.flags:
        return
    into.rewards[number, :count] = tensors.from_bytes(outcome.rewards, _F8, (count,), "rewards")
    flags = tensors.from_bytes(outcome.flags, _U1, (count,), "flags")
    into.flags[number, :count] = flags
    if flags[:-1].any() or int(flags[-1:].max(initial=0)) not in _LEGAL_FLAGS:
        raise RemoteProtocolError(f"outcome {number}: an episode ends once, by TERMINATED or TRUNCATED")


def _read_obs(outcomes: Sequence[pb.SimulateOutcome], into: Outcomes, spec: LaneSpec) -> None:
    rows = np.flatnonzero(into.has_obs)
    for index, leaf in enumerate(spec.observation.leaves):
        parts = []
        for row in rows.tolist():
            if len(outcomes[row].obs) != len(spec.observation.leaves) or len(outcomes[row].obs[index]) != leaf.nbytes:
                raise RemoteProtocolError(f"outcome {row}: an observation that does not fit the spec")
            parts.append(outcomes[row].obs[index])
        sent = tensors.from_bytes(b"".join(parts), leaf.dtype, (len(rows), *leaf.shape), f"obs[{leaf.path or index}]")
        if len(rows) == len(into):
            into.obs.append(sent.copy())
        else:
            into.obs.append(np.zeros((len(into), *leaf.shape), leaf.dtype))
            into.obs[-1][rows] = sent


def _read_masks(outcomes: Sequence[pb.SimulateOutcome], into: Outcomes, spec: LaneSpec) -> None:
    masks = {number: each.mask for number, each in enumerate(outcomes) if each.mask}
    if not masks:
        return
    into.mask = np.ones((len(into), spec.mask_size), np.bool_)
    for number, mask in masks.items():
        into.mask[number] = tensors.from_bytes(mask, np.dtype(np.bool_), (spec.mask_size,), "mask")
