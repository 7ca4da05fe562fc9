"""A faulty server, and the check that has to find its fault."""

from __future__ import annotations

from types import ModuleType

import pytest

from asyncrl.conformance import CHECKS, run_check
from tests.unit.conformance.tiny_server import ENV, TinyServer


async def catches(fault: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails unless the check `name` fails on a server with `fault`, within a fraction of a second of waiting."""
    monkeypatch.setattr("asyncrl.conformance.probe.ANSWER_S", 0.3)
    monkeypatch.setattr("asyncrl.conformance.bench.SETTLE_S", 0.3)
    async with TinyServer(fault) as server:
        result = await run_check(CHECKS[name], server, ENV)
    assert result.status == "failed", f"{name}: {result.status} {result.reason} {result.notes}"
    assert result.reason


def checks_of(module: ModuleType) -> set[str]:
    """Names of the checks that a module registers."""
    return {each.name for each in CHECKS.values() if each.function.__module__ == module.__name__}
