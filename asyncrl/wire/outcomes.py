"""What a wave of look-ahead came to: an outcome for each entry at the server, arrays over all of them at the client.

Invariants: what one side encodes the other decodes to equal values (test_outcomes_round_trip); outcomes that make no
sense, of any bytes, are refused (test_any_bytes_are_outcomes_or_refused); of which only the newest frames came, those
have the same stacks as all others (test_newest_frames_make_whole_stacks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import numpy as np

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire import tensors
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import parse_body
from asyncrl.wire.fields import bytes_field_head
from asyncrl.wire.flags import TERMINATED, TRUNCATED
from asyncrl.wire.snapshot_bodies import Status, status_from_proto, status_to_proto
from asyncrl.wire.spaces import Leaf
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.tensors import Array

_F8: Final = np.dtype("<f8")
_U1: Final = np.dtype("<u1")
_LEGAL_FLAGS: Final = frozenset({0, TERMINATED, TRUNCATED})

Frames = tuple[bytes, ...]  # of one stack, oldest first


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
    stacks: list[Frames | None] = field(default_factory=list)  # [N], of the stack leaf, for who asked with `before`

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
    """The body of SIMULATE_RESULT; observations are copied once."""
    parts: list[bytes | Array] = []
    for outcome in outcomes:
        rest, shown = _outcome_to_proto(outcome).SerializeToString(), list[bytes | Array]()
        size = len(rest)
        for leaf in map(tensors.to_buffer, outcome.obs):
            length = len(leaf) if isinstance(leaf, bytes) else leaf.nbytes
            head = bytes_field_head(pb.SimulateOutcome.OBS_FIELD_NUMBER, length)
            size += len(head) + length
            shown += head, leaf
        parts += bytes_field_head(pb.SimulateResult.OUTCOMES_FIELD_NUMBER, size), *shown, rest
    parts.append(pb.SimulateResult(store_bytes=store_bytes).SerializeToString())
    return b"".join(cast("list[bytes]", parts))  # arrays are buffers, too


def _outcome_to_proto(outcome: Outcome) -> pb.SimulateOutcome:
    """All of it but the observation."""
    return pb.SimulateOutcome(
        status=status_to_proto(outcome.status),
        steps=len(outcome.rewards),
        rewards=np.array(outcome.rewards, _F8).tobytes(),
        flags=bytes(outcome.flags),
        mask=b"" if outcome.mask is None else tensors.to_bytes(outcome.mask),
        to_play=outcome.to_play,
        rollout_return=outcome.rollout_return,
        rollout_steps=outcome.rollout_steps,
        rollout_ended=outcome.rollout_ended,
    )


def decode_outcomes(
    body: bytes, spec: LaneSpec, asked: Sequence[int], before: Sequence[Frames | None] | None = None
) -> Outcomes:
    """The outcomes of a wave whose entries have so many actions, as arrays of the caller's own.

    `before`: for entries with `newest_frames` the stack that their parent shows.
    """
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
    _read_obs(outcomes, found, spec, before)
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


def _read_obs(
    outcomes: Sequence[pb.SimulateOutcome], into: Outcomes, spec: LaneSpec, before: Sequence[Frames | None] | None
) -> None:
    rows = np.flatnonzero(into.has_obs)
    if before is not None:
        into.stacks = [None] * len(into)
    for index, leaf in enumerate(spec.observation.leaves):
        parts: list[bytes] = []
        for row in rows.tolist():
            obs = outcomes[row].obs
            if len(obs) != len(spec.observation.leaves):
                raise RemoteProtocolError(f"outcome {row}: {len(obs)} observation leaves")
            if before is not None and index == spec.stack_leaf:
                stack = into.stacks[row] = _moved_on(before[row], obs[index], leaf, outcomes[row].steps)
                parts += stack
            elif len(obs[index]) == leaf.nbytes:
                parts.append(obs[index])
            else:
                raise _unfit(leaf, obs[index])
        data = bytearray().join(parts)  # writable, and the only copy
        sent = tensors.from_bytes(data, leaf.dtype, (len(rows), *leaf.shape), f"obs[{leaf.path or index}]")
        if len(rows) == len(into):
            into.obs.append(sent)
        else:
            into.obs.append(np.zeros((len(into), *leaf.shape), leaf.dtype))
            into.obs[-1][rows] = sent


def _moved_on(before: Frames | None, sent: bytes, leaf: Leaf, steps: int) -> Frames:
    """The stack after so many steps, of which all of it was sent or, where it is known before, the newest frames."""
    depth = leaf.shape[0]
    size = leaf.nbytes // depth
    if before is not None and steps < depth and len(sent) == steps * size:
        return before[steps:] + _frames(sent, size, steps)
    if len(sent) != leaf.nbytes:
        raise _unfit(leaf, sent)
    return _frames(sent, size, depth)


def _frames(data: bytes, size: int, count: int) -> Frames:
    return tuple(data[number * size : (number + 1) * size] for number in range(count))


def _unfit(leaf: Leaf, sent: bytes) -> RemoteProtocolError:
    return RemoteProtocolError(f"an observation that does not fit the spec: {len(sent)} bytes of {leaf.nbytes}")


def _read_masks(outcomes: Sequence[pb.SimulateOutcome], into: Outcomes, spec: LaneSpec) -> None:
    masks = {number: each.mask for number, each in enumerate(outcomes) if each.mask}
    if not masks:
        return
    into.mask = np.ones((len(into), spec.mask_size), np.bool_)
    for number, mask in masks.items():
        into.mask[number] = tensors.from_bytes(mask, np.dtype(np.bool_), (spec.mask_size,), "mask")
