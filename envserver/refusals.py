"""A refusal as the body of ERROR, the same from the server and from its lane processes.

Invariant: the client reads what was raised here (test_the_client_reads_what_was_raised).
"""

from __future__ import annotations

from typing import Final

from asyncrl.errors import RemoteProtocolError, ServerRefused
from asyncrl.wire.envelope import error_body

MAX_ERROR_TEXT: Final = 2048


def refusal_body(error: ServerRefused | RemoteProtocolError) -> bytes:
    if isinstance(error, RemoteProtocolError):
        return error_body(error.code, str(error)[:MAX_ERROR_TEXT])
    return error_body(
        error.code,
        error.text[:MAX_ERROR_TEXT],
        retryable=error.retryable,
        error_id=error.error_id,
        retry_after_ms=int(error.retry_after_s * 1000),
        cause=error.cause,
    )


def stopping() -> ServerRefused:
    """What whoever wants something new hears while the server ends."""
    return ServerRefused("DRAINING_NOW", "this server is about to stop", retryable=True)
