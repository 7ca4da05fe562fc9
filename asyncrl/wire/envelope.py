"""The envelope: `Message` to frames and back, chunking, CRC.

Invariants: any bytes either become a message or raise `RemoteProtocolError`
(test_any_bytes_parse_or_raise_the_documented_error); a flipped bit under CRC never passes
(test_no_single_bit_flip_passes_the_crc); a body never grows past the reader's limit
(test_chunks_are_refused_past_the_limit).
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb

CHUNK_BYTES: Final = 256 * 1024
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
# Before a lane's spec is known nothing larger than this is worth reading.
SMALL_BODY_BYTES: Final = 1024 * 1024

_CRC_HEADER = struct.Struct("<QQIBBH")
M = TypeVar("M", bound=ProtoMessage)

_KINDS = frozenset(pb.Kind.values()) - {pb.KIND_UNSPECIFIED}


class Message(NamedTuple):
    """A whole body with the envelope fields that concern it."""

    kind: int
    seq: int
    body: bytes
    ack: int = 0
    deadline_ms: int = 0


def kind_name(kind: int) -> str:
    """`STEP` for 3; the number for a kind of the future."""
    return pb.Kind.Name(pb.Kind.ValueType(kind)) if kind in pb.Kind.values() else str(kind)


def _crc(frame: pb.Frame) -> int:
    header = _CRC_HEADER.pack(frame.seq, frame.ack, frame.deadline_ms, frame.kind, frame.more, frame.lane)
    return zlib.crc32(frame.body, zlib.crc32(header))


def _one_frame(message: Message, body: bytes, more: bool, with_crc: bool) -> bytes:
    kind = pb.Kind.ValueType(message.kind)
    frame = pb.Frame(seq=message.seq, ack=message.ack, kind=kind, body=body, deadline_ms=message.deadline_ms)
    if more:
        frame.more = True
    if with_crc:
        frame.crc = _crc(frame)
    return frame.SerializeToString()


def to_frames(message: Message, with_crc: bool) -> list[bytes]:
    """The frames of one message: one, or several of at most CHUNK_BYTES of body each."""
    body = message.body
    if len(body) <= CHUNK_BYTES:
        return [_one_frame(message, body, False, with_crc)]
    last = len(body) - CHUNK_BYTES
    return [
        _one_frame(message, body[start : start + CHUNK_BYTES], start < last, with_crc)
        for start in range(0, len(body), CHUNK_BYTES)
    ]


class FrameReader:
    """Joins the frames of one direction of one stream; `limit` bounds a joined body."""

    def __init__(self, limit: int = SMALL_BODY_BYTES, expect_crc: bool | None = None) -> None:
        self.limit = limit
        self.crc = expect_crc  # None until the first frame has decided for the stream
        self._head: pb.Frame | None = None
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Message | None:
        """One frame in; a message out when its last part has arrived."""
        frame = self._parse(data)
        self._size += len(frame.body)
        if self._size > self.limit:
            raise RemoteProtocolError(
                f"{kind_name(frame.kind)} body over {self.limit} bytes: this lane's spec allows no such size",
                "FRAME_TOO_BIG",
            )
        head = self._head
        if head is None and not frame.more:  # by far the most frequent case
            self._size = 0
            return Message(frame.kind, frame.seq, frame.body, frame.ack, frame.deadline_ms)
        if head is not None and (head.kind, head.seq) != (frame.kind, frame.seq):
            raise RemoteProtocolError(f"part of {kind_name(frame.kind)} inside {kind_name(head.kind)} {head.seq}")
        self._parts.append(frame.body)
        if frame.more:
            self._head = head or frame
            return None
        body = b"".join(self._parts)
        self._head, self._parts, self._size = None, [], 0
        return Message(frame.kind, frame.seq, body, frame.ack, frame.deadline_ms)

    def _parse(self, data: bytes) -> pb.Frame:
        if not data:
            raise RemoteProtocolError("an empty message is not a frame")
        if len(data) > MAX_FRAME_BYTES:
            raise RemoteProtocolError(f"a frame of {len(data)} bytes; the limit is {MAX_FRAME_BYTES}", "FRAME_TOO_BIG")
        try:
            frame = pb.Frame.FromString(data)
        except DecodeError:
            raise RemoteProtocolError("not a Frame: the bytes are no protobuf message of this version") from None
        if frame.kind not in _KINDS:
            raise RemoteProtocolError(f"unknown kind of frame: {frame.kind}", "UNSUPPORTED")
        if frame.lane:
            raise RemoteProtocolError(f"lane index {frame.lane}: one stream carries one lane", "UNSUPPORTED")
        has_crc = frame.HasField("crc")
        if self.crc is None:
            self.crc = has_crc
        if has_crc != self.crc:
            raise RemoteProtocolError("crc must be in every frame of a stream or in none")
        if has_crc and frame.crc != _crc(frame):
            raise RemoteProtocolError("crc mismatch: the frame was damaged on its way")
        return frame


def error_body(code: str, text: str, *, retryable: bool = False, error_id: str = "", **fields: int | str) -> bytes:
    """A serialised Error; `fields` are row, retry_after_ms, cause."""
    error = pb.Error(code=pb.ErrorCode.Value(code), text=text[:4096], retryable=retryable, id=error_id)
    for name, value in fields.items():
        setattr(error, name, value)
    return error.SerializeToString()


def parse_body(kind: type[M], body: bytes) -> M:
    """A body as its protobuf message; malformed bytes are the peer's fault."""
    try:
        return kind.FromString(body)
    except DecodeError:
        raise RemoteProtocolError(f"the body is no {kind.__name__}") from None
