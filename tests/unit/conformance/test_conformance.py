"""The checks against a correct server and against one with every fault that they are there for."""

from __future__ import annotations

import pytest

from asyncrl.conformance import CHECKS, Bench, Check, Failed, Skipped, check, run_check, run_checks
from asyncrl.conformance.registry import Result
from tests.unit.conformance.tiny_server import ENV, TinyServer


def _story(results: list[Result]) -> str:
    return "\n".join(f"{result.check.name}: {result.status} {result.reason}" for result in results)


async def test_a_correct_server_passes() -> None:
    """No check fails or has to be skipped, each says what it saw, and the server is empty afterwards."""
    async with TinyServer() as server:
        results = await run_checks(server, ENV)
        assert {result.status for result in results} == {"passed"}, _story(results)
        assert all(result.notes for result in results), [result.check.name for result in results if not result.notes]
        assert server.lanes == {}
    assert results[0].check.name == "describe_tells_what_there_is"
    assert len(results) == len(CHECKS)


async def test_every_check_states_its_demand() -> None:
    """One sentence that says what the server must do, and where the protocol says so."""
    for each in CHECKS.values():
        assert each.demand.endswith("."), each.name
        assert len(each.demand) > 40
        assert each.section


async def test_results_of_all_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed and Skipped carry their reasons, anything that is no typed error goes through, and checks can be added."""
    added: dict[str, Check] = {}
    monkeypatch.setattr("asyncrl.conformance.registry.CHECKS", added)

    @check("nowhere")
    async def mine(bench: Bench) -> None:
        """It must be mine."""
        bench.note("looked")
        raise Failed("it is not")

    @check("nowhere")
    async def theirs(bench: Bench) -> None:
        """It must be theirs."""
        raise Skipped("it is nobody's")

    async with TinyServer() as server:
        failed = await run_check(added["mine"], server, ENV)
        skipped = await run_check(added["theirs"], server, ENV)
        assert (failed.status, failed.reason, failed.notes) == ("failed", "it is not", ["looked"])
        assert (skipped.status, skipped.reason) == ("skipped", "it is nobody's")
        assert failed.to_json()["demand"] == "It must be mine."
    with pytest.raises(ValueError, match="a name of its own"):
        check("nowhere")(mine)
