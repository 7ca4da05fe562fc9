"""asyncrl.conformance.ordering: every check finds the fault of a server that it is there for."""

from __future__ import annotations

import pytest

from asyncrl.conformance import ordering
from tests.unit.conformance.catching import catches, checks_of

# (what a server does wrong, the check that has to find it)
FAULTS = [
    ("answers out of order", "pipelined_steps_come_back_in_order"),
    ("never ends for flow", "more_in_flight_than_allowed_is_refused"),
    ("forgets to forget", "replies_are_acknowledged_by_later_requests"),
    ("another nonce", "ping_is_answered_by_pong"),
]


@pytest.mark.parametrize(("fault", "name"), FAULTS)
async def test_each_fault_is_caught(fault: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails, with words, and does not hang."""
    await catches(fault, name, monkeypatch)


def test_every_check_has_a_fault_that_it_catches() -> None:
    """No check is there that was never seen to fail."""
    assert {name for _, name in FAULTS} == checks_of(ordering)
