"""The lane protocol as data: states, kinds, and which kind may cross the wire in which state.

One table serves both ends: a frame that one end may not send is a frame that the other end
may not receive. `client_lane` and `server_lane` walk it; nothing else knows the states.

    IDLE ──OPEN──► OPENING ──OPENED──► LIVE ──BYE──► CLOSED
                      │                 │ ▲
                   (stream breaks)   (breaks, resumable)
                      ▼                 ▼ │ RESUMED
                    CLOSED          DETACHED ──RESUME──► RESUMING
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from asyncrl.errors import ProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import kind_name


class LaneState(Enum):
    """Where a lane stands, seen the same from both ends."""

    IDLE = auto()
    OPENING = auto()
    LIVE = auto()
    DETACHED = auto()
    RESUMING = auto()
    CLOSED = auto()


# What answers a sequenced request. ERROR may answer any of them.
REPLY_OF: Final[dict[int, int]] = {
    pb.OPEN: pb.OPENED,
    pb.RESET: pb.STEP_RESULT,
    pb.STEP: pb.STEP_RESULT,
    pb.SNAPSHOT: pb.SNAPSHOT_RESULT,
    pb.RESTORE: pb.STEP_RESULT,
    pb.SIMULATE: pb.SIMULATE_RESULT,
    pb.RELEASE: pb.RELEASED,
    pb.EXPORT: pb.EXPORTED,
    pb.IMPORT: pb.SNAPSHOT_RESULT,
    pb.RENDER: pb.RENDERED,
}
REQUESTS: Final = frozenset(REPLY_OF)
REPLIES: Final = frozenset(REPLY_OF.values()) | {pb.ERROR}
CLIENT_CONTROL: Final = frozenset({pb.RESUME, pb.CANCEL, pb.PING, pb.BYE})
SERVER_CONTROL: Final = frozenset({pb.RESUMED, pb.PONG, pb.EVENT, pb.ERROR, pb.BYE})

# Unanswered requests before Opened says how many there may be: OPEN and one RESET.
EARLY_IN_FLIGHT: Final = 2

_S = LaneState
_LIVE_KINDS = (REQUESTS | REPLIES) - {pb.OPEN, pb.OPENED, pb.ERROR}

# (state, kind) -> state, for frames that cross the wire. An ERROR that answers a request
# leaves a LIVE lane alive; every other ERROR ends it, which `after_error` decides.
LANE_TABLE: Final[dict[tuple[LaneState, int], LaneState]] = {
    (_S.IDLE, pb.OPEN): _S.OPENING,
    (_S.IDLE, pb.BYE): _S.CLOSED,
    (_S.OPENING, pb.RESET): _S.OPENING,
    (_S.OPENING, pb.OPENED): _S.LIVE,
    (_S.DETACHED, pb.RESUME): _S.RESUMING,
    (_S.RESUMING, pb.RESUMED): _S.LIVE,
    **{(_S.LIVE, kind): _S.LIVE for kind in _LIVE_KINDS},
    **{(state, kind): state for state in (_S.OPENING, _S.LIVE, _S.RESUMING) for kind in (pb.PING, pb.PONG, pb.EVENT)},
    **{(state, pb.CANCEL): state for state in (_S.OPENING, _S.LIVE)},
    **{(state, pb.BYE): _S.CLOSED for state in (_S.OPENING, _S.LIVE, _S.RESUMING)},
}


def after(state: LaneState, kind: int, fault: type[ProtocolError]) -> LaneState:
    """The state after a frame other than ERROR; `fault` is raised where there is none."""
    try:
        return LANE_TABLE[state, kind]
    except KeyError:
        raise fault(f"{kind_name(kind)} is illegal while the lane is {state.name}") from None


def after_error(state: LaneState, seq: int, fault: type[ProtocolError]) -> LaneState:
    """The state after an ERROR: alive only where it answers a request of a lane that is open."""
    if state in (_S.CLOSED, _S.DETACHED):
        raise fault(f"ERROR is illegal while the lane is {state.name}")
    return _S.LIVE if state is _S.LIVE and seq else _S.CLOSED


def after_break(state: LaneState, resumable: bool) -> LaneState:
    """The state after the stream ended without BYE."""
    if resumable and state in (_S.LIVE, _S.RESUMING, _S.DETACHED):
        return _S.DETACHED
    return _S.CLOSED
