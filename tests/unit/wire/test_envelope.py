"""Frames: chunks, CRC, limits, and any bytes at all."""

from __future__ import annotations

import os
import random
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import (
    CHUNK_BYTES,
    MAX_FRAME_BYTES,
    MAX_TEXT_BYTES,
    SMALL_BODY_BYTES,
    FrameReader,
    Message,
    error_body,
    kind_name,
    parse_body,
    plain_text,
    to_frames,
)

# Section 2 of the proto: a body of more than this is cut.
CHUNK = 256 * 1024
KINDS = sorted(set(pb.Kind.values()) - {pb.KIND_UNSPECIFIED})
# 20 000 frames in every run; ASYNCRL_FUZZ=1000000 for a night.
FUZZ_FRAMES = int(os.environ.get("ASYNCRL_FUZZ", "20000"))

messages = st.builds(
    Message,
    kind=st.sampled_from(KINDS),
    seq=st.integers(0, 2**64 - 1),
    body=st.binary(max_size=300),
    ack=st.integers(0, 2**64 - 1),
    deadline_ms=st.integers(0, 2**32 - 1),
)


def frame(**fields: Any) -> bytes:
    return pb.Frame(**{"kind": pb.STEP, "seq": 1, **fields}).SerializeToString()


def read_all(reader: FrameReader, frames: list[bytes]) -> list[Message]:
    return [message for message in map(reader.feed, frames) if message is not None]


@given(st.lists(messages, max_size=5), st.booleans())
def test_messages_round_trip(sent: list[Message], with_crc: bool) -> None:
    """Whatever is sent arrives, in order, and the reader learns from the first frame whether there is a CRC."""
    reader = FrameReader()
    assert read_all(reader, [part for message in sent for part in to_frames(message, with_crc)]) == sent
    assert reader.crc == (with_crc if sent else None)


@given(messages, st.booleans())
def test_a_frame_is_what_protobuf_writes(message: Message, with_crc: bool) -> None:
    """The joined bytes equal protobuf's, and the CRC is section 4 of the proto, written out by hand."""
    kind = pb.Kind.ValueType(message.kind)
    whole = pb.Frame(seq=message.seq, ack=message.ack, kind=kind, body=message.body, deadline_ms=message.deadline_ms)
    if with_crc:
        head = struct.pack("<QQIBBH", message.seq, message.ack, message.deadline_ms, message.kind, 0, 0)
        whole.crc = zlib.crc32(head + message.body)
    assert to_frames(message, with_crc) == [whole.SerializeToString()]


@pytest.mark.parametrize("with_crc", [False, True])
@pytest.mark.parametrize(
    ("size", "count"),
    [(0, 1), (CHUNK, 1), (CHUNK + 1, 2), (2 * CHUNK, 2), (2 * CHUNK + 1, 3)],
)
def test_large_bodies_are_cut_and_joined(size: int, count: int, with_crc: bool) -> None:
    """No frame has more than a chunk of body, all but the last say more, and the joined body is the one sent."""
    body = random.Random(size).randbytes(size)
    frames = to_frames(Message(pb.STEP_RESULT, 7, body, 3, 5), with_crc)
    parsed = [pb.Frame.FromString(data) for data in frames]
    assert len(frames) == count
    assert [each.more for each in parsed] == [True] * (count - 1) + [False]
    assert max(len(each.body) for each in parsed) <= CHUNK
    reader = FrameReader(max(size, 10))
    following = Message(pb.EVENT, 0, b"next")
    assert read_all(reader, frames + to_frames(following, with_crc)) == [
        Message(pb.STEP_RESULT, 7, body, 3, 5),
        following,
    ]


@pytest.mark.parametrize("whole", [True, False])
def test_chunks_are_refused_past_the_limit(whole: bool) -> None:
    """One byte over the limit is refused, in one frame or summed over parts; the limit itself is not."""
    limit = 1000
    sizes = [limit] if whole else [400, 400, 200]
    reader = FrameReader(limit)
    frames = [frame(body=bytes(size), more=number + 1 < len(sizes)) for number, size in enumerate(sizes)]
    assert len(read_all(reader, frames)) == 1
    assert len(read_all(reader, frames)) == 1  # the sum starts anew with each body
    sizes[-1] += 1
    frames = [frame(body=bytes(size), more=number + 1 < len(sizes)) for number, size in enumerate(sizes)]
    with pytest.raises(RemoteProtocolError, match="allows no such size") as caught:
        read_all(reader, frames)
    assert caught.value.code == "FRAME_TOO_BIG"


def test_the_default_limit_is_small() -> None:
    """Before a spec is known a peer cannot make us hold more than a megabyte."""
    with pytest.raises(RemoteProtocolError):
        FrameReader().feed(frame(body=bytes(SMALL_BODY_BYTES + 1)))


def test_a_huge_frame_is_refused_before_it_is_parsed() -> None:
    """Over 16 MiB, whatever is in it."""
    with pytest.raises(RemoteProtocolError, match="the limit is") as caught:
        FrameReader(1 << 30).feed(bytes(MAX_FRAME_BYTES + 1))
    assert caught.value.code == "FRAME_TOO_BIG"


ILLEGAL: dict[str, tuple[list[bytes], str]] = {
    "empty": ([b""], "BAD_FRAME"),
    "no protobuf": ([b"\xff"], "BAD_FRAME"),
    "truncated": ([frame(body=bytes(50))[:-1]], "BAD_FRAME"),
    "no kind": ([frame(kind=0)], "UNSUPPORTED"),
    "unknown kind": ([frame(kind=pb.Kind.ValueType(70))], "UNSUPPORTED"),
    "another lane": ([frame(lane=1)], "UNSUPPORTED"),
    "parts of two kinds": ([frame(body=b"a", more=True), frame(kind=pb.RESET, body=b"b")], "BAD_FRAME"),
    "parts of two requests": ([frame(body=b"a", more=True), frame(seq=2, body=b"b")], "BAD_FRAME"),
    "a whole frame between parts": ([frame(body=b"a", more=True), frame(kind=pb.PING, seq=0)], "BAD_FRAME"),
    "an empty part": ([frame(more=True)], "BAD_FRAME"),
    "an empty last part": ([frame(body=b"a", more=True), frame()], "BAD_FRAME"),
    "a crc all of a sudden": ([frame(), frame(crc=1)], "BAD_FRAME"),
    "a crc no more": ([*to_frames(Message(pb.STEP, 1, b""), True), frame(seq=2)], "BAD_FRAME"),
    "a wrong crc": ([frame(crc=1)], "BAD_FRAME"),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_illegal_frames_have_their_codes(case: str) -> None:
    """The last frame of each case raises RemoteProtocolError with the code that the peer is told."""
    frames, code = ILLEGAL[case]
    reader = FrameReader()
    read_all(reader, frames[:-1])
    with pytest.raises(RemoteProtocolError) as caught:
        reader.feed(frames[-1])
    assert caught.value.code == code


def test_frames_may_have_fields_of_later_versions() -> None:
    """What a newer minor version adds is skipped, in the first frame too."""
    assert FrameReader().feed(frame(seq=2) + b"\x7d\0\0\0\0") == Message(pb.STEP, 2, b"")


@pytest.mark.parametrize("expect_crc", [True, False])
def test_a_reader_that_knows_is_not_talked_out_of_it(expect_crc: bool) -> None:
    """Where the transport decides about the CRC, the first frame does not."""
    with pytest.raises(RemoteProtocolError, match="every frame of a stream or in none"):
        read_all(FrameReader(expect_crc=expect_crc), to_frames(Message(pb.STEP, 1, b"x"), not expect_crc))


@pytest.mark.parametrize(
    "message",
    [
        Message(pb.STEP, 1, b""),
        Message(pb.STEP, 300, b"\0\x80body\xff", 299, 5000),
        Message(pb.BYE, 0, b"\n\x03end", 2**63),
        Message(pb.STEP_RESULT, 2**64 - 1, bytes(range(256)), 0, 2**32 - 1),
    ],
)
def test_no_single_bit_flip_passes_the_crc(message: Message) -> None:
    """Every bit of a frame, flipped alone: refused, unless it means nothing (the unused bits of a 10-byte number)."""
    (data,) = to_frames(message, True)
    unharmed, codes = 0, set()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            assert FrameReader(expect_crc=True).feed(bytes(damaged)) == message
        except RemoteProtocolError as error:
            codes.add(error.code)
            continue
        unharmed += 1
    assert unharmed <= 9
    assert "UNSUPPORTED" not in codes  # nobody would ask for it again


def test_no_bit_flip_in_a_part_passes() -> None:
    """Flips in the head, of `more`, in the body and in the CRC of a part are refused too, or mean nothing."""
    message = Message(pb.STEP_RESULT, 3, bytes(CHUNK_BYTES + 3))
    frames = to_frames(message, True)
    head = len(frames[0]) - CHUNK_BYTES - 5
    for position in (*range(head), head + 1000, *range(-5, 0)):
        for bit in range(8):
            damaged = bytearray(frames[0])
            damaged[position] ^= 1 << bit
            try:
                found = read_all(FrameReader(expect_crc=True), [bytes(damaged), frames[1]])
            except RemoteProtocolError:
                continue
            assert found == [message]  # `more` is any number but 0


def mutated(rng: random.Random, data: bytes) -> bytes:
    """A frame after one to four accidents."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(found) + 1)
        match rng.randrange(6):
            case 0:
                found[place:place] = rng.randbytes(rng.randint(1, 9))
            case 1:
                del found[place : place + rng.randint(1, 9)]
            case 2:
                found[place : place + 4] = rng.randbytes(4)
            case 3:
                found = found[:place]
            case 4:
                found += found[place : place + 20]
            case _ if found:
                found[place % len(found)] ^= 1 << rng.randrange(8)
    return bytes(found)


def seeds_of_fuzz(rng: random.Random) -> bytes:
    kind = rng.choice(KINDS)
    message = Message(kind, rng.choice([0, 1, 2**40]), rng.randbytes(rng.choice([0, 3, 60])), rng.randrange(99), 7)
    return to_frames(message, rng.random() < 0.5)[0]


@pytest.mark.timeout(60 + FUZZ_FRAMES // 5000)
def test_any_bytes_parse_or_raise_the_documented_error() -> None:
    """Mutated frames, fed to readers that live until their first error: a message, None, or RemoteProtocolError."""
    rng = random.Random(20240817)
    reader, parsed, codes = FrameReader(4096), 0, set[str]()
    for _ in range(FUZZ_FRAMES):
        try:
            found = reader.feed(mutated(rng, seeds_of_fuzz(rng)))
        except RemoteProtocolError as error:
            codes.add(error.code)
            reader = FrameReader(4096, rng.choice([None, True, False]))
            continue
        assert found is None or found.kind in KINDS
        parsed += found is not None
    assert parsed > FUZZ_FRAMES // 100  # the mutator leaves some frames legal
    assert codes <= {"BAD_FRAME", "FRAME_TOO_BIG", "UNSUPPORTED"}


@given(st.binary(max_size=200), st.sampled_from([True, False, None]))
def test_random_bytes_parse_or_raise(data: bytes, expect_crc: bool | None) -> None:
    """The same for bytes that have never been a frame."""
    try:
        found = FrameReader(expect_crc=expect_crc).feed(data)
    except RemoteProtocolError:
        return
    assert found is None or found.kind in KINDS


@pytest.mark.parametrize("kind", [pb.Open, pb.StepResult, pb.Error, pb.Opened])
def test_a_body_that_is_none_is_the_peers_fault(kind: Any) -> None:
    """Truncated, and a string that is no UTF-8."""
    for body in (b"\xff", b"\x0a\x05ab", b"\x22\x01\xff" if kind is pb.Error else b"\x08"):
        with pytest.raises(RemoteProtocolError, match=f"no {kind.__name__}"):
            parse_body(kind, body)


def test_kinds_have_names() -> None:
    """Known kinds by name, those of the future by number."""
    assert kind_name(pb.STEP) == "STEP"
    assert kind_name(99) == "99"


def test_errors_carry_their_fields() -> None:
    """Every field arrives."""
    data = error_body("LANE_LOST", "it died", retryable=True, error_id="id", row=3, retry_after_ms=7, cause="hang")
    assert parse_body(pb.Error, data) == pb.Error(
        code=pb.LANE_LOST, text="it died", retryable=True, id="id", row=3, retry_after_ms=7, cause="hang"
    )


@pytest.mark.parametrize("text", ["", "plain", "漢" * 5000, "file\udcff name", "\ud800", "x" * (MAX_TEXT_BYTES + 1)])
def test_any_text_can_be_sent_in_an_error(text: str) -> None:
    """Lone surrogates are replaced, and what is too long is cut between characters."""
    error = parse_body(pb.Error, error_body("INTERNAL", text, cause=text))
    assert len(error.text.encode()) <= MAX_TEXT_BYTES
    assert error.text == error.cause == plain_text(text)
    assert text.encode("utf-8", "replace").decode().startswith(error.text)
