"""Framing on a lane's socketpair."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator

import pytest

from asyncrl.errors import LocalProtocolError, RemoteProtocolError
from envserver.lane_socket import (
    BROKEN,
    HEADER,
    MAX_BODY_BYTES,
    READ_BYTES,
    BlockingLaneSocket,
    LaneMessage,
    LaneProtocol,
    MessageBuffer,
)

SIZES = (0, 1, 19, 7168, READ_BYTES - HEADER.size - 1, READ_BYTES - HEADER.size, READ_BYTES, 300_000)
BIG = 30_000_000


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def packed(message: LaneMessage) -> bytes:
    return HEADER.pack(len(message.body), message.deadline_ms, message.kind, message.seq) + message.body


async def connected(sock: socket.socket) -> tuple[LaneProtocol, asyncio.Queue[LaneMessage]]:
    protocol = LaneProtocol()
    inbox: asyncio.Queue[LaneMessage] = asyncio.Queue()
    protocol.on_message = lambda kind, seq, body: inbox.put_nowait(LaneMessage(kind, seq, body))
    await asyncio.get_running_loop().create_unix_connection(lambda: protocol, sock=sock)
    return protocol, inbox


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


async def test_bodies_larger_than_the_socket_buffer_arrive_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    """30 MB in both directions, between small messages that keep their order."""
    protocol, inbox = await connected(pair[0])
    lane = BlockingLaneSocket(pair[1])
    bodies = [b"before", random.Random(1).randbytes(BIG), b"after", b""]

    def echo() -> None:
        number = 0
        while number < len(bodies):
            for message in lane.receive():
                lane.send(message.kind, message.seq, message.body)
                number += 1

    for seq, body in enumerate(bodies):
        protocol.send(7, seq, body, deadline_ms=5)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(echo))
        echoed = [await inbox.get() for _ in bodies]
    assert [(message.kind, message.seq) for message in echoed] == [(7, seq) for seq in range(len(bodies))]
    assert [message.body for message in echoed] == bodies
    protocol.close()


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


async def test_what_a_dead_peer_wrote_can_still_be_read(pair: tuple[socket.socket, socket.socket]) -> None:
    """`read_rest` delivers at once what lies in the socket, even where another process keeps it open."""
    protocol, inbox = await connected(pair[0])
    closed = asyncio.Event()
    protocol.on_closed = closed.set
    lane = BlockingLaneSocket(pair[1])
    for seq in range(5):
        lane.send(33, seq, b"x" * 7000)
    protocol.read_rest()
    assert [inbox.get_nowait().seq for _ in range(5)] == [0, 1, 2, 3, 4]
    async with asyncio.timeout(5):
        await closed.wait()


async def test_an_impossible_header_closes_the_socket(pair: tuple[socket.socket, socket.socket]) -> None:
    """A lane that claims a body over the limit is cut off; messages before it count, and the owner is told why."""
    protocol, inbox = await connected(pair[0])
    closed = asyncio.Event()
    protocol.on_closed = closed.set
    pair[1].sendall(packed(LaneMessage(33, 1, b"fine")) + HEADER.pack(MAX_BODY_BYTES + 1, 0, 33, 2))
    async with asyncio.timeout(5):
        await closed.wait()
    assert inbox.get_nowait().body == b"fine"
    last = inbox.get_nowait()
    assert (last.kind, last.body) == (
        BROKEN,
        f"a body of {MAX_BODY_BYTES + 1} bytes; the limit is {MAX_BODY_BYTES}".encode(),
    )
    assert inbox.empty()


@pytest.mark.parametrize("error", [RemoteProtocolError("a mask over 7"), LocalProtocolError("answers no request")])
async def test_what_the_owner_refuses_closes_the_socket(
    pair: tuple[socket.socket, socket.socket], error: Exception
) -> None:
    """A reply that its owner cannot take is told to it as the lane's last word."""
    protocol, _ = await connected(pair[0])
    closed, heard = asyncio.Event(), list[tuple[int, bytes]]()
    protocol.on_closed = closed.set

    def refuse(kind: int, seq: int, body: bytes) -> None:
        heard.append((kind, body))
        if kind != BROKEN:
            raise error

    protocol.on_message = refuse
    pair[1].sendall(packed(LaneMessage(33, 1, b"nonsense")) + packed(LaneMessage(33, 2, b"never heard")))
    async with asyncio.timeout(5):
        await closed.wait()
    assert heard == [(33, b"nonsense"), (BROKEN, str(error).encode())]


async def test_after_close_nothing_is_delivered_or_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    """Not even what had arrived: whoever closes a lane is not called any more."""
    protocol, inbox = await connected(pair[0])
    closed = asyncio.Event()
    protocol.on_closed = closed.set
    pair[1].sendall(packed(LaneMessage(33, 1, b"too late")))
    protocol.close()
    protocol.send(3, 1, b"too late")
    protocol.read_rest()
    async with asyncio.timeout(5):
        await closed.wait()
    assert inbox.empty()
    pair[1].settimeout(5)
    with pytest.raises(ConnectionResetError):  # it was closed with unread bytes in it
        pair[1].recv(1)
