"""The relay's end of a lane's socketpair."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest

from asyncrl.errors import LocalProtocolError, RemoteProtocolError
from envserver.lane_protocol import LaneProtocol
from envserver.lane_socket import BROKEN, HEADER, MAX_BODY_BYTES, BlockingLaneSocket, LaneMessage
from tests.unit.envserver.framing import packed

BIG = 30_000_000


async def connected(sock: socket.socket) -> tuple[LaneProtocol, asyncio.Queue[LaneMessage]]:
    protocol = LaneProtocol()
    inbox: asyncio.Queue[LaneMessage] = asyncio.Queue()
    protocol.on_message = lambda kind, seq, body: inbox.put_nowait(LaneMessage(kind, seq, body))
    await asyncio.get_running_loop().create_unix_connection(lambda: protocol, sock=sock)
    return protocol, inbox


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
