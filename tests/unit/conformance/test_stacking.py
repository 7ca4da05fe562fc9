"""asyncrl.conformance.stacking: every check finds the fault of a server that it is there for."""

from __future__ import annotations

import pytest

from asyncrl.conformance import stacking
from tests.unit.conformance.catching import catches, checks_of

# (what a server does wrong, the check that has to find it)
FAULTS = [
    ("sends no stack whole", "newest_frames_make_the_stacks_that_are_sent_whole"),
    ("shows the frame before", "newest_frames_make_the_stacks_that_are_sent_whole"),
    ("tells changes backwards", "changes_make_what_is_sent_whole"),
    ("keeps no child", "newest_frames_of_a_look_end_in_the_stack_that_it_shows"),
    ("tells the oldest frames", "newest_frames_of_a_look_end_in_the_stack_that_it_shows"),
]


@pytest.mark.parametrize(("fault", "name"), FAULTS)
async def test_each_fault_is_caught(fault: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails, with words, and does not hang."""
    await catches(fault, name, monkeypatch)


def test_every_check_has_a_fault_that_it_catches() -> None:
    """No check is there that was never seen to fail."""
    assert {name for _, name in FAULTS} == checks_of(stacking)
