"""asyncrl.conformance.registry: how checks are listed, and how they fail."""

from __future__ import annotations

import pytest

from asyncrl.conformance.bench import Bench
from asyncrl.conformance.registry import CHECKS, Check, Result, check, expect
from asyncrl.conformance.verdicts import Failed


def test_a_check_needs_a_sentence_and_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is registered carries its docstring in one line; without one, or twice, it is refused."""
    added: dict[str, Check] = {}
    monkeypatch.setattr("asyncrl.conformance.registry.CHECKS", added)

    @check("9. NOWHERE")
    async def mine(bench: Bench) -> None:
        """It must be
        mine."""

    async def silent(bench: Bench) -> None:
        pass

    assert (added["mine"].demand, added["mine"].section) == ("It must be mine.", "9. NOWHERE")
    for function in (mine, silent):
        with pytest.raises(ValueError, match="needs a docstring and a name of its own"):
            check("9. NOWHERE")(function)


def test_expect_fails_with_its_text() -> None:
    """A condition that holds passes without a word."""
    expect(True, "never said")
    with pytest.raises(Failed, match="said"):
        expect(False, "said")


def test_a_result_is_plain_json() -> None:
    """Everything that a report needs, with the demand beside the verdict."""
    each = CHECKS["ping_is_answered_by_pong"]
    told = Result(each, "failed", "why", ["saw"], 0.12345).to_json()
    assert told["check"] == each.name
    assert (told["status"], told["reason"], told["notes"], told["seconds"]) == ("failed", "why", ["saw"], 0.123)
    assert told["demand"] == each.demand
