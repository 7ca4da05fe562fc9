"""Rows over the wire: random ones with everything in them, with and without the frame-stack codec, and misfits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.changes import ChangeDecoder, ChangeEncoder
from asyncrl.wire.flags import (
    CUT,
    FIRST,
    LEGAL_FLAGS,
    NO_TRANSITION,
    SOFT,
    TERMINATED,
    TRUNCATED,
)
from asyncrl.wire.frame_stack import StackDecoder, StackEncoder
from asyncrl.wire.infos import InfoColumn
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import EpisodeStats, Rebuilt, StepRows, decode, encode, final_rows_of
from asyncrl.wire.tensors import Array
from tests.unit.wire.strategies import random_array, random_leaves, seeds, space_specs

U4 = np.dtype("<u4")
ACTION = SpaceSpec((Node(pb.DISCRETE, dtype=np.dtype("<i8"), n=3),))
BOX = SpaceSpec((Node(pb.BOX, dtype=np.dtype("<f4"), shape=(2,)),))
STACKED = SpaceSpec(
    (
        Node(pb.DICT),
        Node(pb.BOX, 0, "frames", np.dtype("<u1"), (4, 8, 8)),
        Node(pb.BOX, 0, "speed", np.dtype("<f4"), ()),
    )
)


def lane_spec(observation: SpaceSpec, mask_size: int = 3, stack_leaf: int | None = None) -> LaneSpec:
    return LaneSpec("x", observation, ACTION, mask_size=mask_size, stack_leaf=stack_leaf)


def some_rows(rng: np.random.Generator, num_slots: int) -> Array:
    """Row numbers, ascending, at least one."""
    rows = np.flatnonzero(rng.integers(0, 2, num_slots))
    return (rows if len(rows) else np.array([num_slots - 1])).astype(U4)


def some_infos(rng: np.random.Generator, num_slots: int) -> list[InfoColumn]:
    rows = some_rows(rng, num_slots)
    return [InfoColumn("lives", rows, random_array(rng, np.dtype("<i4"), (len(rows), 2)))]


def random_rows(rng: np.random.Generator, spec: LaneSpec, num_slots: int) -> StepRows:
    """Every field, or none of it, at random."""
    flags = rng.choice(sorted(LEGAL_FLAGS), num_slots).astype(np.uint8)
    finals = final_rows_of(flags)
    rows = StepRows(
        random_leaves(rng, spec.observation, num_slots),
        random_array(rng, np.dtype("<f8"), (num_slots,)),
        flags,
        finals,
        random_leaves(rng, spec.observation, len(finals)) if len(finals) else [],
        action_crc=int(rng.integers(0, 2**32)),
        infos_dropped=int(rng.integers(0, 9)),
    )
    chance = iter(rng.integers(0, 2, 10).astype(bool).tolist())
    if next(chance):
        rows.mask = random_array(rng, np.dtype(np.bool_), (num_slots, spec.mask_size))
    if next(chance) and len(finals):
        rows.final_mask = random_array(rng, np.dtype(np.bool_), (len(finals), spec.mask_size))
    if next(chance):
        rows.to_play = random_array(rng, np.dtype("<i4"), (num_slots,))
    if next(chance):
        ended = some_rows(rng, num_slots)
        size = (len(ended),)
        arrays = [random_array(rng, np.dtype(name), size) for name in ("<f8", "<u4", "<f4")]
        rows.stats = EpisodeStats(ended, *arrays)
    if next(chance):
        rows.infos = some_infos(rng, num_slots)
    if next(chance):
        rows.final_infos = some_infos(rng, num_slots)
    if next(chance):
        rows.rebuilt = [Rebuilt(0, 2**40, "ENV_FAULT", "it raised"), Rebuilt(num_slots - 1, 1, "LANE_LOST", "")]
    return rows


def plain(value: Any) -> Any:
    """Rows as what can be compared: arrays by dtype, shape and bits."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, list):
        return [plain(item) for item in value]
    if hasattr(value, "__slots__"):
        return {name: plain(getattr(value, name)) for name in value.__slots__}
    return value


@given(seeds, space_specs(), st.integers(1, 5))
def test_step_rows_round_trip(seed: int, observation: SpaceSpec, num_slots: int) -> None:
    """Any rows of any space come back equal in every field, and their arrays are the caller's own."""
    spec = lane_spec(observation)
    rows = random_rows(np.random.default_rng(seed), spec, num_slots)
    body = encode(rows, spec)
    back = decode(body, spec, num_slots)
    assert plain(back) == plain(rows)
    taken = [np.frombuffer(body, np.uint8)]
    for array in (*back.obs, *back.final_obs, back.rewards, back.flags):
        assert array.flags.writeable
        assert not any(np.may_share_memory(array, other) for other in taken)
        taken.append(array)


@given(seeds, space_specs(), st.integers(1, 4))
def test_rows_are_what_protobuf_writes(seed: int, observation: SpaceSpec, num_slots: int) -> None:
    """The joined body is protobuf's own form of the same message."""
    body = encode(random_rows(np.random.default_rng(seed), lane_spec(observation), num_slots), lane_spec(observation))
    assert pb.StepResult.FromString(body).SerializeToString(deterministic=True) == body


def codec_rows(
    rng: np.random.Generator, spec: LaneSpec, num_slots: int, before: Array | None
) -> tuple[StepRows, Array]:
    """Rows whose stacks shift, except where an episode begins, and sometimes elsewhere; in most, little moves."""
    rows = random_rows(rng, spec, num_slots)
    if before is None:
        rows.flags = np.full(num_slots, FIRST | NO_TRANSITION, np.uint8)
        rows.final_rows, rows.final_obs, rows.final_mask = final_rows_of(rows.flags), [], None
        return rows, rows.obs[0]
    soft_or_plain = (rows.flags & (FIRST | SOFT)) != FIRST
    shifts = soft_or_plain & (rng.integers(0, 4, num_slots) > 0)
    rows.obs[0][shifts, :-1] = before[shifts, 1:]
    if rng.integers(0, 4):
        rows.obs[0][:, -1, 1:] = before[:, -1, 1:]
    if len(rows.final_rows) and rng.integers(0, 3):
        rows.final_obs[0][:, :-1] = before[rows.final_rows, 1:]
    return rows, rows.obs[0]


@settings(max_examples=60)
@given(seeds, st.integers(1, 4), st.booleans())
def test_rows_round_trip_under_the_codecs(seed: int, num_slots: int, agreed: bool) -> None:
    """A sequence of replies of a lane with FRAME_STACK, and with CHANGES or not, beside a leaf that is not stacked."""
    rng, spec = np.random.default_rng(seed), lane_spec(STACKED, stack_leaf=0)
    encoder, decoder = StackEncoder(), StackDecoder(num_slots, 4, (8, 8), np.dtype("<u1"))
    changes = (ChangeEncoder(), ChangeDecoder()) if agreed else (None, None)
    before = None
    for _ in range(5):
        rows, before = codec_rows(rng, spec, num_slots, before)
        back = decode(encode(rows, spec, encoder, changes[0]), spec, num_slots, decoder, changes[1])
        assert plain(back) == plain(rows)
        back.obs[0][...] = 0


def test_the_codec_saves_three_quarters_of_the_frames() -> None:
    """The body of a plain step is a quarter in the stacked leaf, and has no whole stacks."""
    spec = lane_spec(SpaceSpec((Node(pb.BOX, dtype=np.dtype("<u1"), shape=(4, 84, 84)),)), stack_leaf=0)
    frames = np.random.default_rng(0).integers(0, 256, (5, 8, 84, 84), dtype=np.uint8)
    encoder = StackEncoder()
    for number in range(2):
        rows = StepRows([np.stack(list(frames[number : number + 4]), 1)], np.zeros(8), np.zeros(8, np.uint8))
        message = pb.StepResult.FromString(encode(rows, spec, encoder))
    assert len(message.obs[0]) == 8 * 84 * 84
    assert not message.stack_rows
    assert not message.stack_obs


PICTURES = SpaceSpec(
    (
        Node(pb.DICT),
        Node(pb.BOX, 0, "picture", np.dtype("<u1"), (8, 8)),
        Node(pb.BOX, 0, "speed", np.dtype("<f4"), ()),
    )
)


def still_life() -> tuple[LaneSpec, ChangeDecoder, pb.StepResult]:
    """A lane of two slots after its first reply, and the next one: in row 1 a pixel has changed."""
    spec = lane_spec(PICTURES)
    encoder, decoder = ChangeEncoder(), ChangeDecoder()
    rows = StepRows([np.full((2, 8, 8), 5, np.uint8), np.zeros(2, np.float32)], np.zeros(2), np.zeros(2, np.uint8))
    decode(encode(rows, spec, None, encoder), spec, 2, None, decoder)
    rows.obs[0][1, 7, 7] = 6
    return spec, decoder, pb.StepResult.FromString(encode(rows, spec, None, encoder))


def test_only_what_changed_travels() -> None:
    """Of two pictures of 64 bytes: a bit for each of their 16 words, and the one word that is another."""
    spec, decoder, message = still_life()
    assert list(message.obs) == [b"", bytes(8)]
    assert list(message.changed) == [pb.Changed(leaf=0, bits=b"\x00\x80", words=b"\5\5\5\5\5\5\5\6")]
    arrived = decode(message.SerializeToString(), spec, 2, None, decoder).obs[0]
    assert np.argwhere(arrived != 5).tolist() == [[1, 7, 7]]
    assert arrived[1, 7, 7] == 6


CHANGES_THAT_DO_NOT_FIT: dict[str, Callable[[pb.StepResult], Any]] = {
    "too few bits": lambda message: setattr(message.changed[0], "bits", b"\x80"),
    "too few words": lambda message: setattr(message.changed[0], "words", bytes(7)),
    "a word that no bit is for": lambda message: setattr(message.changed[0], "words", bytes(16)),
    "the picture as well": lambda message: message.obs.__setitem__(0, bytes(128)),
    "neither": lambda message: message.ClearField("changed"),
    "twice": lambda message: message.changed.append(message.changed[0]),
    "of a leaf that is too small": lambda message: setattr(message.changed[0], "leaf", 1),
    "of a leaf that is not there": lambda message: setattr(message.changed[0], "leaf", 2),
}


@pytest.mark.parametrize("case", CHANGES_THAT_DO_NOT_FIT)
def test_changes_beside_what_they_change_are_refused(case: str) -> None:
    """And the decoder goes on as if nothing had come."""
    spec, decoder, message = still_life()
    good = message.SerializeToString()
    CHANGES_THAT_DO_NOT_FIT[case](message)
    with pytest.raises(RemoteProtocolError):
        decode(message.SerializeToString(), spec, 2, None, decoder)
    assert decode(good, spec, 2, None, decoder).obs[0].sum() == 2 * 64 * 5 + 1


@pytest.mark.parametrize("flags", sorted(LEGAL_FLAGS))
def test_final_rows_follow_from_the_flags(flags: int) -> None:
    """An end with a first observation in the same row that is not soft, and nothing else, has a final row.

    A reply that lists another row, or leaves one out, is refused.
    """
    has_final = flags in (TERMINATED | FIRST, TRUNCATED | FIRST)
    assert final_rows_of(np.array([0, flags, 0], np.uint8)).tolist() == ([1] if has_final else [])
    spec = lane_spec(BOX)
    rows = StepRows([np.zeros((3, 2), np.float32)], np.zeros(3), np.array([0, flags, 0], np.uint8))
    for listed in ([], [0], [1], [0, 1], [1, 2]):
        rows.final_rows = np.array(listed, U4)
        rows.final_obs = [np.zeros((len(listed), 2), np.float32)] if listed else []
        if listed == ([1] if has_final else []):
            decode(encode(rows, spec), spec, 3)
        else:
            with pytest.raises(RemoteProtocolError, match="final_rows"):
                decode(encode(rows, spec), spec, 3)


def full_message() -> pb.StepResult:
    """A reply of 3 slots with one final row and every field."""
    u4 = np.array([1], U4).tobytes()
    column = pb.InfoColumn(key="k", dtype=pb.U1, data=bytes(3))
    return pb.StepResult(
        obs=[bytes(24)],
        rewards=bytes(24),
        flags=bytes([0, TERMINATED | FIRST, 0]),
        final_rows=u4,
        final_obs=[bytes(8)],
        mask=bytes(9),
        final_mask=bytes(3),
        to_play=bytes(12),
        stat_rows=u4,
        stat_returns=bytes(8),
        stat_lengths=bytes(4),
        stat_times=bytes(4),
        infos=[column],
        final_infos=[column],
        rebuilt=[pb.Rebuilt(row=2)],
    )


BYTES_FIELDS = [
    *("rewards", "flags", "final_rows", "mask", "final_mask", "to_play"),
    *("stat_rows", "stat_returns", "stat_lengths", "stat_times"),
]
MAY_BE_EMPTY = {"mask", "final_mask", "to_play"}


@pytest.mark.parametrize("field", BYTES_FIELDS)
def test_wrong_lengths_are_refused(field: str) -> None:
    """Every array one byte too short, one too long, doubled and empty: refused, except where empty means absent."""
    spec = lane_spec(BOX)
    good = getattr(full_message(), field)
    for data in (good[:-1], good + b"\0", good + good, b""):
        message = full_message()
        setattr(message, field, data)
        if field in MAY_BE_EMPTY and not data:
            assert getattr(decode(message.SerializeToString(), spec, 3), field) is None
        else:
            with pytest.raises(RemoteProtocolError):
                decode(message.SerializeToString(), spec, 3)


MISFITS: dict[str, Callable[[pb.StepResult], Any]] = {
    "no observation": lambda message: message.ClearField("obs"),
    "two observations": lambda message: message.obs.append(bytes(24)),
    "a short observation": lambda message: message.obs.__setitem__(0, bytes(23)),
    "no final observation": lambda message: message.ClearField("final_obs"),
    "a long final observation": lambda message: message.final_obs.__setitem__(0, bytes(16)),
    "whole stacks that nobody agreed on": lambda message: setattr(message, "stack_obs", b"x"),
    "stack rows that nobody agreed on": lambda message: setattr(message, "stack_rows", bytes(4)),
    "changes that nobody agreed on": lambda message: message.changed.add(),
    "statistics of rows that are not there": lambda message: setattr(message, "stat_rows", b"\3\0\0\0"),
    "a rebuilt slot that is not there": lambda message: message.rebuilt.append(pb.Rebuilt(row=3)),
    "an incarnation that cannot be counted on": lambda message: message.rebuilt.append(pb.Rebuilt(incarnation=2**63)),
    "a slot that is rebuilt and rebuilt": lambda message: message.rebuilt.extend([pb.Rebuilt()] * 48),
    "a bad info column": lambda message: message.infos.append(pb.InfoColumn(key="x")),
    "a bad final info column": lambda message: message.final_infos.append(pb.InfoColumn(key="x")),
    "a mask of other numbers": lambda message: setattr(message, "mask", b"\2" + bytes(8)),
}


@pytest.mark.parametrize("case", MISFITS)
def test_messages_that_do_not_fit_their_spec_are_refused(case: str) -> None:
    """Arrays and rows that the spec or the flags do not have."""
    message = full_message()
    assert decode(message.SerializeToString(), lane_spec(BOX), 3).final_rows.tolist() == [1]
    MISFITS[case](message)
    with pytest.raises(RemoteProtocolError):
        decode(message.SerializeToString(), lane_spec(BOX), 3)


def test_final_observations_without_a_final_row_are_refused() -> None:
    """Bytes that nobody would look at."""
    message = full_message()
    message.flags = bytes(3)
    for name in ("final_rows", "final_mask"):
        message.ClearField(name)
    with pytest.raises(RemoteProtocolError, match="no row that ended"):
        decode(message.SerializeToString(), lane_spec(BOX), 3)


def test_rows_of_another_lane_are_refused() -> None:
    """More or fewer slots than the lane has, and a body that is no message."""
    body = full_message().SerializeToString()
    for num_slots in (0, 2, 4):
        with pytest.raises(RemoteProtocolError):
            decode(body, lane_spec(BOX), num_slots)
    with pytest.raises(RemoteProtocolError, match="no StepResult"):
        decode(b"\xff", lane_spec(BOX), 3)


@pytest.mark.parametrize("flags", [FIRST | NO_TRANSITION, TERMINATED | FIRST, CUT | FIRST | NO_TRANSITION])
def test_an_episode_that_begins_brings_its_whole_stack(flags: int) -> None:
    """A first row without its whole stack would mix the frames of two episodes: refused."""
    spec = lane_spec(STACKED, stack_leaf=0)
    decoder = StackDecoder(1, 4, (8, 8), np.dtype("<u1"))
    obs: list[Array] = [np.ones((1, 4, 8, 8), np.uint8), np.zeros(1, np.float32)]
    begin = StepRows(obs, np.zeros(1), np.array([FIRST | NO_TRANSITION], np.uint8))
    decode(encode(begin, spec, StackEncoder()), spec, 1, decoder)
    has_final = final_rows_of(np.array([flags], np.uint8))
    message = pb.StepResult(obs=[bytes(64), bytes(4)], rewards=bytes(8), flags=bytes([flags]))
    if len(has_final):
        message.final_rows = has_final.tobytes()
        message.final_obs.extend([bytes(64), bytes(4)])
    with pytest.raises(RemoteProtocolError, match="begins anew"):
        decode(message.SerializeToString(), spec, 1, decoder)


def test_rows_of_a_reset_answer_no_action() -> None:
    """Their CRC is that of none."""
    rows = StepRows([np.zeros((1, 2), np.float32)], np.zeros(1), np.full(1, FIRST | NO_TRANSITION, np.uint8))
    body = encode(rows, lane_spec(BOX))
    assert pb.StepResult.FromString(body).action_crc == decode(body, lane_spec(BOX), 1).action_crc == 0


def test_the_code_of_a_rebuilt_slot_may_be_of_the_future() -> None:
    """An unknown code is no reason to lose the rows."""
    message = full_message()
    message.rebuilt[0].cause.code = pb.ErrorCode.ValueType(99)
    assert decode(message.SerializeToString(), lane_spec(BOX), 3).rebuilt[0].code == "ERROR_UNSPECIFIED"


def test_any_text_of_an_exception_travels() -> None:
    """Lone surrogates in what an environment said do not cost the reply."""
    rows = StepRows([np.zeros((1, 2), np.float32)], np.zeros(1), np.zeros(1, np.uint8))
    rows.rebuilt = [Rebuilt(0, 1, "ENV_FAULT", "no file \udcff")]
    assert decode(encode(rows, lane_spec(BOX)), lane_spec(BOX), 1).rebuilt[0].text == "no file ?"


@settings(max_examples=300)
@given(seeds, st.booleans())
def test_damaged_bodies_decode_or_raise(seed: int, with_codec: bool) -> None:
    """Mutated bodies: rows of the right shapes, or RemoteProtocolError and nothing else."""
    rng = np.random.default_rng(seed)
    spec = lane_spec(STACKED, stack_leaf=0)
    encoders = (StackEncoder(), ChangeEncoder()) if with_codec else (None, None)
    decoders = (StackDecoder(3, 4, (8, 8), np.dtype("<u1")), ChangeDecoder()) if with_codec else (None, None)
    rows, before = codec_rows(rng, spec, 3, None)
    decode(encode(rows, spec, *encoders), spec, 3, *decoders)
    body = bytearray(encode(codec_rows(rng, spec, 3, before)[0], spec, *encoders))
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(0, len(body)))
        match rng.integers(0, 3):
            case 0:
                body[place] ^= 1 << int(rng.integers(0, 8))
            case 1:
                del body[place : place + int(rng.integers(1, 9))]
            case _:
                body[place:place] = rng.bytes(int(rng.integers(1, 5)))
        if not body:
            break
    try:
        back = decode(bytes(body), spec, 3, *decoders)
    except RemoteProtocolError:
        return
    assert [array.shape for array in back.obs] == [(3, 4, 8, 8), (3,)]
    assert back.flags.shape == back.rewards.shape == (3,)
