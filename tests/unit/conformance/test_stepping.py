"""asyncrl.conformance.stepping: every check finds the fault of a server that it is there for."""

from __future__ import annotations

import pytest

from asyncrl.conformance import stepping
from tests.unit.conformance.catching import catches, checks_of

# (what a server does wrong, the check that has to find it)
FAULTS = [
    ("resets without flags", "reset_begins_episodes"),
    ("rewards resets", "reset_begins_episodes"),
    ("repeats ends", "rows_are_legal"),
    ("echoes another crc", "rows_are_legal"),
    ("ignores seeds", "equal_seeds_give_equal_rows"),
    ("ignores seeds", "a_reset_in_mid_episode_begins_anew"),
    ("shows the first obs as final", "final_and_first_observations_are_true"),
    ("shows the final obs as first", "final_and_first_observations_are_true"),
    ("truncates as terminated", "the_step_limit_truncates"),
    ("never truncates", "the_step_limit_truncates"),
    ("ignores the mask", "a_masked_reset_touches_its_rows_alone"),
    ("ignores resets", "a_reset_in_mid_episode_begins_anew"),
    ("ignores resets", "a_masked_reset_touches_its_rows_alone"),
    ("resets unasked", "without_autoreset_an_ended_row_waits"),
]


@pytest.mark.parametrize(("fault", "name"), FAULTS)
async def test_each_fault_is_caught(fault: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails, with words, and does not hang."""
    await catches(fault, name, monkeypatch)


def test_every_check_has_a_fault_that_it_catches() -> None:
    """No check is there that was never seen to fail."""
    assert {name for _, name in FAULTS} == checks_of(stepping)
