"""Deadlines of the requests of one lane, in times of our own making."""

from __future__ import annotations

from envserver.deadlines import Deadlines


def test_a_deadline_runs_from_head_of_line() -> None:
    """What a request waits behind another does not count against it; at the very deadline it is not overdue."""
    deadlines = Deadlines()
    deadlines.asked(60.0, 100.0)
    deadlines.asked(5.0, 101.0)
    assert not deadlines.overdue(160.0)
    assert deadlines.overdue(160.5)
    deadlines.answered(150.0)
    assert not deadlines.overdue(155.0)
    assert deadlines.overdue(155.5)


def test_progress_starts_a_deadline_again() -> None:
    """A lane that says it is at work is not overdue."""
    deadlines = Deadlines()
    deadlines.asked(5.0, 0.0)
    deadlines.progressed(4.0)
    assert not deadlines.overdue(9.0)
    assert deadlines.overdue(9.5)


def test_time_that_the_server_stood_still_is_forgiven() -> None:
    """As if the request had come later by that much."""
    deadlines = Deadlines()
    deadlines.asked(5.0, 0.0)
    deadlines.forgive(60.0)
    assert not deadlines.overdue(65.0)
    assert deadlines.overdue(65.5)


def test_an_idle_lane_owes_nothing() -> None:
    """Before the first request, after the last answer, and once nothing will be answered any more."""
    deadlines = Deadlines()
    assert (deadlines.idle, deadlines.overdue(1e9)) == (True, False)
    deadlines.asked(5.0, 0.0)
    assert (deadlines.idle, deadlines.overdue(1e9)) == (False, True)
    deadlines.answered(1.0)
    assert (deadlines.idle, deadlines.overdue(1e9)) == (True, False)
    # The pause since the last answer is not the next request's.
    deadlines.asked(5.0, 100.0)
    assert not deadlines.overdue(104.0)
    deadlines.asked(5.0, 101.0)
    deadlines.clear()
    assert (deadlines.idle, deadlines.overdue(1e9)) == (True, False)
