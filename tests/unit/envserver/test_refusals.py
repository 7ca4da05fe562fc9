"""Refusals on their way from the server to the exception that its client raises."""

from __future__ import annotations

import pytest

from asyncrl.client.refusals import refusal
from asyncrl.errors import EnvFault, LaneLost, MessageMissing, RemoteProtocolError, ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from envserver.refusals import MAX_ERROR_TEXT, refusal_body

FIELDS = ("code", "text", "error_id", "retryable", "retry_after_s", "cause")


@pytest.mark.parametrize(
    "raised",
    [
        ServerRefused("BUSY", "others hold them", retryable=True, retry_after_s=0.75),
        ServerRefused("BUILD_FAILED", "no ROM", error_id="beef"),
        EnvFault("ENV_FAULT", "it raised"),
        LaneLost("LANE_LOST", "it died", retryable=True, cause="crash(SIGSEGV)"),
    ],
)
def test_the_client_reads_what_was_raised(raised: ServerRefused) -> None:
    """Class and every field of the exception."""
    read = refusal(pb.Error.FromString(refusal_body(raised)))
    assert type(read) is type(raised)
    assert [getattr(read, name) for name in FIELDS] == [getattr(raised, name) for name in FIELDS]


@pytest.mark.parametrize("raised", [RemoteProtocolError("it is broken", "FLOW_VIOLATION"), MessageMissing("seq 3")])
def test_a_broken_protocol_has_its_code(raised: RemoteProtocolError) -> None:
    """The peer's fault is told by its code, and is not worth another try."""
    read = refusal(pb.Error.FromString(refusal_body(raised)))
    assert (read.code, read.text, read.retryable) == (raised.code, str(raised), False)


@pytest.mark.parametrize("kind", [ServerRefused, RemoteProtocolError])
def test_long_texts_are_cut(kind: type[ServerRefused | RemoteProtocolError]) -> None:
    """What a peer made us say of it does not come back in full."""
    text = "x" * 10 * MAX_ERROR_TEXT
    raised = ServerRefused("BUSY", text) if kind is ServerRefused else RemoteProtocolError(text)
    assert pb.Error.FromString(refusal_body(raised)).text == "x" * MAX_ERROR_TEXT
