"""Framing on a lane's socketpair, and its blocking end."""

from __future__ import annotations

import random
import socket

import pytest

from asyncrl.errors import RemoteProtocolError
from envserver.lane_socket import HEADER, READ_BYTES, BlockingLaneSocket, LaneMessage, MessageBuffer
from tests.unit.envserver.framing import packed

SIZES = (0, 1, 19, 7168, READ_BYTES - HEADER.size - 1, READ_BYTES - HEADER.size, READ_BYTES, 300_000)


@pytest.mark.parametrize("seed", range(20))
def test_any_split_of_the_stream_gives_the_same_messages(seed: int) -> None:
    """Headers and bodies may be cut anywhere, and several messages may come at once."""
    rng = random.Random(seed)
    sent = [
        LaneMessage(rng.randrange(256), i, rng.randbytes(rng.choice(SIZES)), rng.randrange(2**32)) for i in range(40)
    ]
    stream = b"".join(map(packed, sent))
    buffer, received, at = MessageBuffer(), list[LaneMessage](), 0
    largest = rng.choice([1000, 30_000, READ_BYTES * 2])
    while at < len(stream):
        place = buffer.writable()
        assert len(place) > 0
        count = min(len(place), len(stream) - at, rng.randint(1, largest))
        place[:count] = stream[at : at + count]
        received += buffer.feed(count)
        at += count
    assert received == sent


def test_a_body_over_the_limit_is_refused() -> None:
    """The header's claim alone is enough: nothing of that size is allocated."""
    buffer = MessageBuffer(limit=100_000)
    header = HEADER.pack(100_001, 0, 3, 1)
    buffer.writable()[: len(header)] = header
    with pytest.raises(RemoteProtocolError, match="100001 bytes") as refused:
        list(buffer.feed(len(header)))
    assert refused.value.code == "FRAME_TOO_BIG"


def test_the_deadline_travels_with_a_request(pair: tuple[socket.socket, socket.socket]) -> None:
    """Kind, seq, body and deadline of a request are what was packed."""
    message = LaneMessage(3, 2**63, b"body", 30_000)
    pair[0].sendall(packed(message))
    assert BlockingLaneSocket(pair[1]).receive() == [message]


def test_the_blocking_end_sees_the_close(pair: tuple[socket.socket, socket.socket]) -> None:
    """An empty read is the end of the lane, waiting or not."""
    lane = BlockingLaneSocket(pair[1])
    assert lane.receive_nowait() == []
    pair[0].close()
    for receive in (lane.receive, lane.receive_nowait):
        with pytest.raises(EOFError):
            receive()
