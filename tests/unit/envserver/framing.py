"""Messages as they lie on a lane's socketpair."""

from __future__ import annotations

from envserver.lane_socket import HEADER, LaneMessage


def packed(message: LaneMessage) -> bytes:
    return HEADER.pack(len(message.body), message.deadline_ms, message.kind, message.seq) + message.body
