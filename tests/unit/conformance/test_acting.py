"""asyncrl.conformance.acting: every check finds the fault of a server that it is there for."""

from __future__ import annotations

import pytest

from asyncrl.conformance import acting
from tests.unit.conformance.catching import catches, checks_of

# (what a server does wrong, the check that has to find it)
FAULTS = [
    ("pads actions", "actions_of_a_wrong_size_are_refused"),
    ("ignores action_crc", "a_wrong_action_crc_is_refused"),
    ("takes any choice", "actions_out_of_range_are_refused"),
    ("takes NaN", "actions_that_are_no_numbers_are_refused"),
    ("executes what it refuses", "actions_out_of_range_are_refused"),
    ("executes what it refuses", "actions_that_are_no_numbers_are_refused"),
]


@pytest.mark.parametrize(("fault", "name"), FAULTS)
async def test_each_fault_is_caught(fault: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails, with words, and does not hang."""
    await catches(fault, name, monkeypatch)


def test_every_check_has_a_fault_that_it_catches() -> None:
    """No check is there that was never seen to fail."""
    assert {name for _, name in FAULTS} == checks_of(acting)
