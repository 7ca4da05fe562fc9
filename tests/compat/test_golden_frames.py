"""Frames of protocol 1.0, byte for byte: today's decoder reads them, today's encoder makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import FrameReader, Message, parse_body
from asyncrl.wire.requests import check_actions, decode_reset, decode_step
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import decode
from tests.compat import frames
from tests.compat.frames import ACTION, ACTIONS, GOLDEN, MESSAGES, RESET, ROWS, SPEC

KINDS = sorted(set(pb.Kind.values()) - {pb.KIND_UNSPECIFIED})


def golden(kind: int) -> Message:
    """The frame of a kind, through today's reader."""
    data = (GOLDEN / f"{pb.Kind.Name(pb.Kind.ValueType(kind))}.bin").read_bytes()
    message = FrameReader(expect_crc=bool(kind % 2)).feed(data)
    assert message is not None
    return message


def test_every_kind_has_a_golden_frame() -> None:
    """One file per kind of the proto and no other; a new kind needs `python -m tests.compat.frames`."""
    assert sorted(path.name for path in GOLDEN.iterdir()) == sorted(f"{pb.Kind.Name(kind)}.bin" for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=[pb.Kind.Name(kind) for kind in KINDS])
def test_todays_encoder_makes_the_golden_frames(kind: pb.Kind.ValueType) -> None:
    """The bytes on disk are the bytes that would be sent now."""
    name = f"{pb.Kind.Name(kind)}.bin"
    assert frames.frames()[name] == (GOLDEN / name).read_bytes()


@pytest.mark.parametrize("kind", KINDS, ids=[pb.Kind.Name(kind) for kind in KINDS])
def test_todays_decoder_reads_the_golden_frames(kind: pb.Kind.ValueType) -> None:
    """Envelope fields and, for bodies that are plain messages, every field."""
    message = golden(kind)
    assert message._replace(body=b"") == frames.message_of(kind, b"")
    if kind in MESSAGES:
        assert parse_body(type(MESSAGES[kind]), message.body) == MESSAGES[kind]


def test_the_golden_rows_are_read() -> None:
    """Every array of the STEP_RESULT, with the spec that the golden OPENED carries."""
    opened = parse_body(pb.Opened, golden(pb.OPENED).body)
    spec = LaneSpec.from_proto(opened.spec)
    assert spec == SPEC
    assert spec.hash() == opened.spec_hash
    rows = decode(golden(pb.STEP_RESULT).body, spec, 3)

    def same(ours: Any, theirs: Any) -> bool:
        return str(ours.dtype) == str(theirs.dtype) and ours.shape == theirs.shape and bool(np.all(ours == theirs))

    for name in ("rewards", "flags", "final_rows", "mask", "final_mask", "to_play"):
        assert same(getattr(ROWS, name), getattr(rows, name)), name
    for ours, theirs in zip([*ROWS.obs, *ROWS.final_obs], [*rows.obs, *rows.final_obs], strict=True):
        assert same(ours, theirs)
    assert ROWS.stats is not None
    assert rows.stats is not None
    for name in ("rows", "returns", "lengths", "times"):
        assert same(getattr(ROWS.stats, name), getattr(rows.stats, name)), name
    for one, other in zip([*ROWS.infos, *ROWS.final_infos], [*rows.infos, *rows.final_infos], strict=True):
        assert one.key == other.key
        assert same(one.rows, other.rows)
        assert same(one.data, other.data)
    assert (rows.rebuilt, rows.infos_dropped, rows.action_crc) == (ROWS.rebuilt, 2, 0xDEADBEEF)


def test_the_golden_requests_are_read() -> None:
    """RESET and STEP, through the decoders of the lane process."""
    reset = decode_reset(golden(pb.RESET).body, 3)
    assert reset.mask is not None
    assert (reset.mask.tolist(), reset.seeds, reset.options) == ([True, False, True], RESET.seeds, RESET.options)
    action, _ = decode_step(golden(pb.STEP).body, ACTION.leaves, 3)
    assert [array.tolist() for array in action] == [array.tolist() for array in ACTIONS]
    assert check_actions(action, ACTION) is None
    error = parse_body(pb.Error, golden(pb.ERROR).body)
    assert (error.code, error.cause, error.row, error.retry_after_ms) == (pb.LANE_LOST, "crash(SIGKILL)", 1, 500)


# What a later minor version may add: field 100, after and inside every message.
LATER = b"\xa2\x06\x05later"


@pytest.mark.parametrize("kind", KINDS, ids=[pb.Kind.Name(kind) for kind in KINDS])
def test_fields_of_a_later_version_are_skipped(kind: pb.Kind.ValueType) -> None:
    """A frame of 1.1 with an unknown field in the envelope and in the body is read as one of 1.0."""
    message = golden(kind)
    frame = pb.Frame(seq=message.seq, ack=message.ack, kind=kind, body=message.body + LATER, deadline_ms=5000)
    later = FrameReader().feed(frame.SerializeToString() + LATER)
    assert later is not None
    assert later._replace(body=b"") == message._replace(body=b"")
    if kind in MESSAGES:
        body: Any = parse_body(type(MESSAGES[kind]), later.body)
        body.DiscardUnknownFields()
        assert body == MESSAGES[kind]
    elif kind == pb.STEP_RESULT:
        assert decode(later.body, SPEC, 3).action_crc == ROWS.action_crc
