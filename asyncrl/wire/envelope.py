"""The envelope: `Message` to frames and back, chunking, CRC.

Invariants: any bytes either become a message or raise `RemoteProtocolError`
(test_any_bytes_parse_or_raise_the_documented_error); where the reader was told to expect a CRC, a flipped bit never
becomes another message (test_no_single_bit_flip_passes_the_crc): one that learns it from the first frame can be
deceived by that frame; a body never grows past the reader's limit
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
from asyncrl.wire.fields import bytes_field_head

CHUNK_BYTES: Final = 256 * 1024
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
# Before a lane's spec is known nothing larger than this is worth reading.
SMALL_BODY_BYTES: Final = 1024 * 1024
MAX_TEXT_BYTES: Final = 4096  # of an Error or an Event

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


def _crc(message: Message, body: bytes | memoryview, more: bool) -> int:
    header = _CRC_HEADER.pack(message.seq, message.ack, message.deadline_ms, message.kind, more, 0)
    return zlib.crc32(body, zlib.crc32(header))


def _crc_of(frame: pb.Frame) -> int:
    message = Message(frame.kind, frame.seq, b"", frame.ack, frame.deadline_ms)
    return _crc(message, frame.body, frame.more)


def _one_frame(message: Message, body: bytes | memoryview, more: bool, with_crc: bool) -> bytes:
    """Protobuf's own bytes, fields in ascending order; the body is joined in between instead of copied through it."""
    kind = pb.Kind.ValueType(message.kind)
    parts: list[bytes | memoryview] = [
        pb.Frame(seq=message.seq, ack=message.ack, kind=kind, more=more).SerializeToString()
    ]
    if body:
        parts += bytes_field_head(pb.Frame.BODY_FIELD_NUMBER, len(body)), body
    if with_crc or message.deadline_ms:
        crc = _crc(message, body, more) if with_crc else None
        parts.append(pb.Frame(crc=crc, deadline_ms=message.deadline_ms).SerializeToString())
    return b"".join(parts)


def to_frames(message: Message, with_crc: bool) -> list[bytes]:
    """The frames of one message: one, or several of at most CHUNK_BYTES of body each."""
    body = message.body
    if len(body) <= CHUNK_BYTES:
        return [_one_frame(message, body, False, with_crc)]
    last = len(body) - CHUNK_BYTES
    view = memoryview(body)
    return [
        _one_frame(message, view[start : start + CHUNK_BYTES], start < last, with_crc)
        for start in range(0, len(body), CHUNK_BYTES)
    ]


class FrameReader:
    """Joins the frames of one direction of one stream; `limit` bounds a joined body."""

    def __init__(self, limit: int = SMALL_BODY_BYTES, expect_crc: bool | None = None) -> None:
        self.limit = limit
        self.crc = expect_crc  # None until the first frame has decided for the stream
        self._head: tuple[int, int] | None = None  # kind and seq of the body that is being joined
        # One buffer, not a list of parts: tiny parts would take many times their bytes.
        self._parts = bytearray()

    def feed(self, data: bytes) -> Message | None:
        """One frame in; a message out when its last part has arrived."""
        frame = self._parse(data)
        body = frame.body
        if len(self._parts) + len(body) > self.limit:
            raise RemoteProtocolError(
                f"{kind_name(frame.kind)} body over {self.limit} bytes: this lane's spec allows no such size",
                "FRAME_TOO_BIG",
            )
        if self._head is None and not frame.more:  # by far the most frequent case
            return Message(frame.kind, frame.seq, body, frame.ack, frame.deadline_ms)
        if self._head not in (None, (frame.kind, frame.seq)):
            raise RemoteProtocolError(f"part of {kind_name(frame.kind)} {frame.seq} inside another body")
        if not body:  # it would never reach the limit
            raise RemoteProtocolError(f"an empty part of {kind_name(frame.kind)} {frame.seq}")
        self._parts += body
        if frame.more:
            self._head = (frame.kind, frame.seq)
            return None
        joined = bytes(self._parts)
        self._head, self._parts = None, bytearray()
        return Message(frame.kind, frame.seq, joined, frame.ack, frame.deadline_ms)

    def _parse(self, data: bytes) -> pb.Frame:
        if not data:
            raise RemoteProtocolError("an empty message is not a frame")
        if len(data) > MAX_FRAME_BYTES:
            raise RemoteProtocolError(f"a frame of {len(data)} bytes; the limit is {MAX_FRAME_BYTES}", "FRAME_TOO_BIG")
        try:
            frame = pb.Frame.FromString(data)
        except DecodeError:
            raise RemoteProtocolError("not a Frame: the bytes are no protobuf message of this version") from None
        has_crc = frame.HasField("crc")
        if self.crc is None:
            self.crc = has_crc
        if has_crc != self.crc:
            raise RemoteProtocolError("crc must be in every frame of a stream or in none")
        # Before anything of it is believed: what was damaged can be asked for again, what is not supported cannot.
        if has_crc and (not 0 <= frame.kind <= 255 or frame.crc != _crc_of(frame)):
            raise RemoteProtocolError("crc mismatch: the frame was damaged on its way")
        if frame.kind not in _KINDS:
            raise RemoteProtocolError(f"unknown kind of frame: {frame.kind}", "UNSUPPORTED")
        if frame.lane:
            raise RemoteProtocolError(f"lane index {frame.lane}: one stream carries one lane", "UNSUPPORTED")
        return frame


def error_body(code: str, text: str, *, retryable: bool = False, error_id: str = "", **fields: int | str) -> bytes:
    """A serialised Error; `fields` are row, retry_after_ms, cause."""
    error = pb.Error(code=pb.ErrorCode.Value(code), text=plain_text(text), retryable=retryable, id=error_id)
    for name, value in fields.items():
        setattr(error, name, plain_text(value) if isinstance(value, str) else value)
    return error.SerializeToString()


def plain_text(text: str) -> str:
    """At most 4 KiB that protobuf takes: the words of an exception can hold lone surrogates, as file names do."""
    return text.encode("utf-8", "replace")[:MAX_TEXT_BYTES].decode("utf-8", "ignore")


def parse_body(kind: type[M], body: bytes) -> M:
    """A body as its protobuf message; malformed bytes are the peer's fault."""
    try:
        return kind.FromString(body)
    except DecodeError:
        raise RemoteProtocolError(f"the body is no {kind.__name__}") from None
