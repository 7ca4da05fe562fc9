"""asyncrl.conformance.resuming: every check finds the fault of a server that it is there for."""

from __future__ import annotations

import pytest

from asyncrl.conformance import resuming
from tests.unit.conformance.catching import catches, checks_of

# (what a server does wrong, the check that has to find it)
FAULTS = [
    ("forgets replies", "a_resumed_lane_loses_and_repeats_nothing"),
    ("executes twice", "a_resumed_lane_loses_and_repeats_nothing"),
    ("asks for no token", "resuming_needs_the_token"),
    ("always a window", "a_lane_that_is_not_resumable_ends_with_its_stream"),
]


@pytest.mark.parametrize(("fault", "name"), FAULTS)
async def test_each_fault_is_caught(fault: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails, with words, and does not hang."""
    await catches(fault, name, monkeypatch)


def test_every_check_has_a_fault_that_it_catches() -> None:
    """No check is there that was never seen to fail."""
    assert {name for _, name in FAULTS} == checks_of(resuming)
