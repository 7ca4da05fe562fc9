"""What the server's errors mean for a lane, as tables."""

from __future__ import annotations

from typing import Final

from asyncrl.errors import EnvFault, LaneLost, ServerRefused
from asyncrl.wire._generated import env_pb2 as pb

# The caller's own fault: the lane is well, and its slots are where they were.
CALLERS_FAULT: Final = frozenset({"BAD_ACTION", "BAD_REQUEST", "BAD_KWARGS", "UNSUPPORTED", "FLOW_VIOLATION"})

# No other server of this run can help.
FATAL: Final = frozenset({"FENCED"})

# This server has no room now; another may.
NO_ROOM: Final = frozenset({"CAPACITY", "BUSY", "DRAINING_NOW"})


def refusal(error: pb.Error) -> ServerRefused:
    """The exception for a wire Error."""
    known = error.code in pb.ErrorCode.values()
    code = pb.ErrorCode.Name(error.code) if known else f"ERROR_{error.code}"
    cls: type[ServerRefused] = {"ENV_FAULT": EnvFault, "LANE_LOST": LaneLost}.get(code, ServerRefused)
    return cls(
        code,
        error.text or "the server gave no reason",
        error_id=error.id,
        retryable=error.retryable,
        retry_after_s=error.retry_after_ms / 1000,
        cause=error.cause,
    )


def lane_lost(cause: str, text: str, retry_after_s: float = 0.0) -> LaneLost:
    """A loss that the client found out by itself."""
    return LaneLost("LANE_LOST", text, retryable=True, cause=cause, retry_after_s=retry_after_s)


def as_loss(error: ServerRefused) -> ServerRefused:
    """An error of the server that ends a lane, as the loss of that lane; what is fatal for the run stays itself."""
    if isinstance(error, LaneLost) or error.code in FATAL:
        return error
    lost = LaneLost(
        error.code,
        error.text,
        error_id=error.error_id,
        # Of a lane that its server has given up meanwhile nothing says that another one would not be welcome.
        retryable=error.retryable or error.code == "LANE_UNKNOWN",
        retry_after_s=error.retry_after_s,
        cause=error.cause or error.code.lower(),
    )
    lost.__cause__ = error
    return lost
