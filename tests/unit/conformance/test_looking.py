"""asyncrl.conformance.looking: every check finds the fault of a server that it is there for."""

from __future__ import annotations

import pytest

from asyncrl.conformance import looking
from tests.unit.conformance.catching import catches, checks_of

# (what a server does wrong, the check that has to find it)
FAULTS = [
    ("looks ahead in the slot", "looking_ahead_touches_no_live_slot"),
    ("resamples the frozen", "a_frozen_look_is_what_the_slot_then_does"),
    ("ignores the seed of a look", "a_seed_decides_what_is_resampled"),
    ("fails the whole wave", "entries_of_a_wave_fail_alone"),
    ("releases nothing", "a_released_snapshot_is_gone"),
]


@pytest.mark.parametrize(("fault", "name"), FAULTS)
async def test_each_fault_is_caught(fault: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails, with words, and does not hang."""
    await catches(fault, name, monkeypatch)


def test_every_check_has_a_fault_that_it_catches() -> None:
    """No check is there that was never seen to fail."""
    assert {name for _, name in FAULTS} == checks_of(looking)
