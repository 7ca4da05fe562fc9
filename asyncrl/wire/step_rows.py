"""`StepRows`: what one reset, step or restore of a lane gave, as arrays; and its wire form.

Invariants: decode(encode(rows)) == rows (test_step_rows_round_trip); rows with FIRST that end an
episode, and only those, have a final observation (test_final_rows_follow_from_the_flags); no
array is read before its length was checked against the spec (test_wrong_lengths_are_refused).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, cast

import numpy as np

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire import infos as info_codec
from asyncrl.wire import tensors
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.changes import Change, ChangeDecoder, ChangeEncoder
from asyncrl.wire.envelope import parse_body, plain_text
from asyncrl.wire.fields import bytes_field_head
from asyncrl.wire.flags import FIRST, NO_TRANSITION, SOFT
from asyncrl.wire.frame_stack import Encoder, StackDecoder
from asyncrl.wire.infos import InfoColumn
from asyncrl.wire.spaces import Leaf, read_leaves
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.tensors import Array

_B1, _U1, _U4, _I4 = np.dtype(np.bool_), np.dtype("<u1"), np.dtype("<u4"), np.dtype("<i4")
_F4, _F8 = np.dtype("<f4"), np.dtype("<f8")
_EMPTY_ROWS = np.zeros(0, _U4)
_NO_ROWS = np.zeros(0, _U1)
_FIRST_SOFT = FIRST | SOFT
# The client counts on from what it hears, in 64 bits with a sign.
MAX_INCARNATION: Final = 2**62
MAX_REBUILT: Final = 16  # times, of one slot in one step
_ERROR_CODES = frozenset(pb.ErrorCode.values())


@dataclass(slots=True)
class EpisodeStats:
    """Whole games that ended in these rows; `[E]` each."""

    rows: Array  # u4, ascending
    returns: Array  # f8
    lengths: Array  # u4
    times: Array  # f4, seconds


@dataclass(slots=True)
class Rebuilt:
    """A slot that the lane created anew by itself."""

    row: int
    incarnation: int
    code: str
    text: str


@dataclass(slots=True)
class StepRows:
    """B slots, R final rows. Arrays of a decoded object belong to the caller and are writable."""

    obs: list[Array]  # per leaf [B, *shape]
    rewards: Array  # f8 [B]
    flags: Array  # u1 [B]
    final_rows: Array = field(default_factory=lambda: _EMPTY_ROWS)  # u4 [R]
    final_obs: list[Array] = field(default_factory=list)  # per leaf [R, *shape]; empty where R = 0
    mask: Array | None = None  # b1 [B, mask_size]
    final_mask: Array | None = None  # b1 [R, mask_size]
    to_play: Array | None = None  # i4 [B]
    stats: EpisodeStats | None = None
    infos: list[InfoColumn] = field(default_factory=list)
    final_infos: list[InfoColumn] = field(default_factory=list)
    rebuilt: list[Rebuilt] = field(default_factory=list)
    infos_dropped: int = 0
    action_crc: int = 0


def final_rows_of(flags: Array) -> Array:
    """Rows (u4) that carry a final observation: an end and a new first observation in one row, not SOFT."""
    is_final: Array = (flags & (FIRST | NO_TRANSITION | SOFT)) == FIRST
    return is_final.nonzero()[0].astype(_U4)


def encode(rows: StepRows, spec: LaneSpec, stack: Encoder | None = None, changes: ChangeEncoder | None = None) -> bytes:
    """The body of STEP_RESULT. `stack` and `changes` are the lane's where FRAME_STACK and CHANGES were agreed."""
    message = pb.StepResult(
        rewards=tensors.to_bytes(rows.rewards),
        flags=tensors.to_bytes(rows.flags),
        action_crc=rows.action_crc,
        infos_dropped=rows.infos_dropped,
    )
    obs, final_obs = list(rows.obs), list(rows.final_obs)
    if stack is not None and spec.stack_leaf is not None:
        _encode_stack(rows, spec.stack_leaf, stack, obs, final_obs, message)
    if len(rows.final_rows):
        message.final_rows = tensors.to_bytes(rows.final_rows)
        message.final_obs.extend(map(tensors.to_bytes, final_obs))
    _encode_rare(rows, message)
    if changes is not None:
        obs = [_encode_changes(number, leaf, changes, message) for number, leaf in enumerate(obs)]
    parts: list[bytes | Array] = []
    for leaf in obs:  # field 1, so it comes first
        parts += bytes_field_head(pb.StepResult.OBS_FIELD_NUMBER, leaf.nbytes), tensors.to_buffer(leaf)
    parts.append(message.SerializeToString())
    return b"".join(cast("list[bytes]", parts))  # arrays are buffers, too


def _encode_stack(
    rows: StepRows, leaf: int, stack: Encoder, obs: list[Array], final_obs: list[Array], message: pb.StepResult
) -> None:
    if len(rows.final_rows):
        final_obs[leaf] = stack.final(final_obs[leaf], rows.final_rows)
    apart = ((rows.flags & _FIRST_SOFT) == FIRST) | ((rows.flags & NO_TRANSITION) != 0)
    obs[leaf], whole_rows, stacks = stack.encode(rows.obs[leaf], apart)
    if whole_rows.size:
        message.stack_rows = tensors.to_bytes(whole_rows)
        message.stack_obs = tensors.to_bytes(stacks)


def _encode_changes(number: int, leaf: Array, changes: ChangeEncoder, message: pb.StepResult) -> Array:
    change = changes.encode(number, leaf)
    if change is None:
        return leaf
    message.changed.add(leaf=number, bits=change.bits, words=change.words)
    return _NO_ROWS


def _encode_rare(rows: StepRows, message: pb.StepResult) -> None:
    """Fields that most steps leave empty."""
    for name, array in (("mask", rows.mask), ("final_mask", rows.final_mask), ("to_play", rows.to_play)):
        if array is not None:
            setattr(message, name, tensors.to_bytes(array))
    if rows.stats is not None:
        message.stat_rows = tensors.to_bytes(rows.stats.rows)
        message.stat_returns = tensors.to_bytes(rows.stats.returns)
        message.stat_lengths = tensors.to_bytes(rows.stats.lengths)
        message.stat_times = tensors.to_bytes(rows.stats.times)
    if rows.infos:
        message.infos.extend(info_codec.to_proto(rows.infos, len(rows.flags)))
    if rows.final_infos:
        message.final_infos.extend(info_codec.to_proto(rows.final_infos, len(rows.flags)))
    for rebuilt in rows.rebuilt:
        cause = pb.Error(code=pb.ErrorCode.Value(rebuilt.code), text=plain_text(rebuilt.text), row=rebuilt.row)
        message.rebuilt.append(pb.Rebuilt(row=rebuilt.row, incarnation=rebuilt.incarnation, cause=cause))


def decode(
    body: bytes,
    spec: LaneSpec,
    num_slots: int,
    stack: StackDecoder | None = None,
    changes: ChangeDecoder | None = None,
) -> StepRows:
    """The rows of a STEP_RESULT body; `stack`, `changes` are the lane's where FRAME_STACK, CHANGES were agreed."""
    message = parse_body(pb.StepResult, body)
    flags = tensors.owned(message.flags, _U1, (num_slots,), "flags")
    rewards = tensors.owned(message.rewards, _F8, (num_slots,), "rewards")
    final_rows = final_rows_of(flags)
    if message.final_rows != final_rows.tobytes():
        raise RemoteProtocolError("final_rows are not the rows that the flags say")
    leaves = spec.observation.leaves
    if stack is None or spec.stack_leaf is None:
        if message.stack_rows or message.stack_obs:
            raise RemoteProtocolError("whole stacks, but the frame-stack codec was not agreed on")
        final_obs = _final_leaves(message, leaves, len(final_rows))
        obs = list(map(_owned, _travelled(message, leaves, num_slots, changes)))
    else:
        obs, final_obs = _decode_stack(message, spec, (flags & _FIRST_SOFT) == FIRST, final_rows, stack, changes)
    rows = StepRows(obs, rewards, flags, final_rows, final_obs, action_crc=message.action_crc)
    _decode_rare(message, rows, spec, num_slots)
    return rows


def _owned(array: Array) -> Array:
    return array if array.flags.writeable else array.copy()


def _travelled(
    message: pb.StepResult, leaves: tuple[Leaf, ...], num_slots: int, changes: ChangeDecoder | None
) -> list[Array]:
    """Observation leaves as they were sent, whole or as changes: of a stack its newest frames."""
    found = {each.leaf: Change(each.bits, each.words) for each in message.changed}
    if found and changes is None:
        raise RemoteProtocolError("changes, but nobody agreed on them")
    if len(found) < len(message.changed) or any(number >= len(leaves) for number in found):
        raise RemoteProtocolError(f"changes of leaves {[each.leaf for each in message.changed]} of {len(leaves)}")
    sent = [Leaf(leaf.path, leaf.dtype, (0,)) if number in found else leaf for number, leaf in enumerate(leaves)]
    obs = read_leaves(message.obs, sent, num_slots, "obs")
    if changes is None:
        return obs
    for number, leaf in enumerate(obs):
        if number in found:
            obs[number] = changes.changed(number, found[number])
        else:
            changes.came(number, leaf)
    return obs


def _final_leaves(message: pb.StepResult, leaves: tuple[Leaf, ...], count: int) -> list[Array]:
    if not count:
        if message.final_obs:
            raise RemoteProtocolError("final observations, but no row that ended")
        return []
    return read_leaves(message.final_obs, leaves, count, "final_obs", tensors.owned)


def _decode_stack(
    message: pb.StepResult,
    spec: LaneSpec,
    first: Array,
    final_rows: Array,
    stack: StackDecoder,
    changes: ChangeDecoder | None,
) -> tuple[list[Array], list[Array]]:
    """`first` `[B]`: rows whose stack begins anew and has to be sent whole, or it would mix two episodes."""
    index, num_slots = spec.stack_leaf, len(first)
    assert index is not None
    whole = spec.observation.leaves[index]
    single = Leaf(whole.path, whole.dtype, (1, *whole.shape[1:]))
    leaves = tuple(single if number == index else leaf for number, leaf in enumerate(spec.observation.leaves))
    # Finals continue the stacks of the row before: they come first. Their length tells whether they are whole.
    count = len(final_rows)
    finals_whole = count > 0 and sum(map(len, message.final_obs)) == count * spec.observation.nbytes
    final_obs = _final_leaves(message, spec.observation.leaves if finals_whole else leaves, count)
    if final_obs and not finals_whole:
        final_obs[index] = stack.final(final_obs[index], final_rows)
    whole_rows = info_codec.read_rows(message.stack_rows, num_slots, "stack_rows")
    first[whole_rows] = False
    if first.any():
        raise RemoteProtocolError(f"row {int(np.argmax(first))} begins anew, but its stack was not sent whole")
    sent = tensors.from_bytes(message.stack_obs, whole.dtype, (len(whole_rows), *whole.shape), "stack_obs")
    obs = _travelled(message, leaves, num_slots, changes)
    return [
        stack.decode(leaf, whole_rows, sent) if number == index else _owned(leaf) for number, leaf in enumerate(obs)
    ], final_obs


def _decode_rare(message: pb.StepResult, rows: StepRows, spec: LaneSpec, num_slots: int) -> None:
    width, finals = spec.mask_size, len(rows.final_rows)
    if message.mask:
        rows.mask = tensors.owned(message.mask, _B1, (num_slots, width), "mask")
    if message.final_mask:
        rows.final_mask = tensors.owned(message.final_mask, _B1, (finals, width), "final_mask")
    if message.to_play:
        rows.to_play = tensors.owned(message.to_play, _I4, (num_slots,), "to_play")
    if message.stat_rows or message.stat_returns or message.stat_lengths or message.stat_times:
        stat_rows = info_codec.read_rows(message.stat_rows, num_slots, "stat_rows")
        shape = (len(stat_rows),)
        rows.stats = EpisodeStats(
            stat_rows,
            tensors.owned(message.stat_returns, _F8, shape, "stat_returns"),
            tensors.owned(message.stat_lengths, _U4, shape, "stat_lengths"),
            tensors.owned(message.stat_times, _F4, shape, "stat_times"),
        )
    if message.infos:
        rows.infos = info_codec.from_proto(list(message.infos), num_slots)
    if message.final_infos:
        rows.final_infos = info_codec.from_proto(list(message.final_infos), num_slots)
    if len(message.rebuilt) > MAX_REBUILT * num_slots:
        raise RemoteProtocolError(f"{len(message.rebuilt)} slots of {num_slots} rebuilt")
    for rebuilt in message.rebuilt:
        if rebuilt.row >= num_slots:
            raise RemoteProtocolError(f"rebuilt names row {rebuilt.row} of {num_slots}")
        if rebuilt.incarnation > MAX_INCARNATION:
            raise RemoteProtocolError(f"incarnation {rebuilt.incarnation} of row {rebuilt.row}: nobody lives so often")
        code = rebuilt.cause.code if rebuilt.cause.code in _ERROR_CODES else pb.ERROR_UNSPECIFIED
        rows.rebuilt.append(Rebuilt(rebuilt.row, rebuilt.incarnation, pb.ErrorCode.Name(code), rebuilt.cause.text))
    rows.infos_dropped = message.infos_dropped
