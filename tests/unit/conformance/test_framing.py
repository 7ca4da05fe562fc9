"""asyncrl.conformance.framing: every check finds the fault of a server that it is there for."""

from __future__ import annotations

import pytest

from asyncrl.conformance import framing
from tests.unit.conformance.catching import catches, checks_of

# (what a server does wrong, the check that has to find it)
FAULTS = [
    ("dies of noise", "malformed_frames_end_their_stream_alone"),
    ("ignores noise", "malformed_frames_end_their_stream_alone"),
    ("ignores noise", "frames_out_of_place_end_their_stream"),
    ("has no bounds", "a_body_without_end_is_refused"),
    ("ignores the crc", "a_damaged_frame_never_passes"),
]


@pytest.mark.parametrize(("fault", "name"), FAULTS)
async def test_each_fault_is_caught(fault: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails, with words, and does not hang."""
    await catches(fault, name, monkeypatch)


def test_every_check_has_a_fault_that_it_catches() -> None:
    """No check is there that was never seen to fail."""
    assert {name for _, name in FAULTS} == checks_of(framing)
