"""asyncrl.conformance.opening: every check finds the fault of a server that it is there for."""

from __future__ import annotations

import pytest

from asyncrl.conformance import opening
from tests.unit.conformance.catching import catches, checks_of

# (what a server does wrong, the check that has to find it)
FAULTS = [
    ("hides its alias", "describe_tells_what_there_is"),
    ("another hash each time", "describe_tells_what_there_is"),
    ("another hash each time", "open_is_answered_by_opened"),
    ("one token for all", "open_is_answered_by_opened"),
    ("waits for the reset", "open_and_reset_take_one_round_trip"),
    ("takes any alias", "unknown_env_is_refused"),
    ("keeps its aliases secret", "unknown_env_is_refused"),
    ("takes any kwargs", "bad_kwargs_are_refused"),
    ("takes any version", "a_newer_client_is_refused"),
    ("takes any version", "an_older_client_is_refused"),
    ("calls skew internal", "a_newer_client_is_refused"),
    ("calls skew internal", "an_older_client_is_refused"),
    ("claims the future", "a_newer_minor_version_is_welcome"),
    ("keeps slots", "bye_gives_the_slots_back"),
    ("falls over a second bye", "closing_twice_does_no_harm"),
    ("ends for what it lacks", "what_is_not_offered_is_unsupported"),
]


@pytest.mark.parametrize(("fault", "name"), FAULTS)
async def test_each_fault_is_caught(fault: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails, with words, and does not hang."""
    await catches(fault, name, monkeypatch)


def test_every_check_has_a_fault_that_it_catches() -> None:
    """No check is there that was never seen to fail."""
    assert {name for _, name in FAULTS} == checks_of(opening)
