"""asyncrl.conformance.bench: what checks compare with, and what they send."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrl.conformance.bench import SEEDS, Bench, difference, needs, same_obs, settled
from asyncrl.conformance.verdicts import Skipped
from asyncrl.errors import ConnectionFailed
from asyncrl.wire.step_rows import StepRows
from tests.unit.conformance.tiny_server import ENV, SPEC, TinyServer


def _rows(obs: list[list[float]], rewards: list[float], finals: list[list[float]] | None = None) -> StepRows:
    flags = np.array([5 if finals else 0] + [0] * (len(rewards) - 1), np.uint8)
    rows = StepRows([np.array(obs)], np.array(rewards), flags)
    if finals:
        rows.final_rows, rows.final_obs = np.array([0], "<u4"), [np.array(finals)]
    return rows


def test_differences_are_named() -> None:
    """The first field and row that differ, in words. NaN equals NaN; rows that were not asked for do not count."""
    one = _rows([[1.0, np.nan], [2.0, 2.0]], [0.0, 1.0])
    assert difference(one, _rows([[1.0, np.nan], [2.0, 2.0]], [0.0, 1.0])) == ""
    assert "rewards of row 1" in difference(one, _rows([[1.0, np.nan], [2.0, 2.0]], [0.0, 3.0]))
    other = _rows([[7.0, 7.0], [2.0, 2.0]], [0.0, 1.0])
    assert "obs[0] of row 0" in difference(one, other)
    assert difference(one, other, [1]) == ""
    first, second = (_rows([[1.0], [2.0]], [0.0, 1.0], [[end]]) for end in (3.0, 4.0))
    assert "final_obs[0]" in difference(first, second)
    assert same_obs(first.obs, 1, [np.array([[2.0]])], 0)


def test_actions_are_the_same_each_time() -> None:
    """Checks that compare two lanes send both the same actions, of the right form."""
    bench = Bench(TinyServer(), ENV, {})
    one, two = bench.actions(SPEC, 3), bench.actions(SPEC, 3)
    for ours, theirs in zip(one, two, strict=True):
        for leaf, again in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(leaf, again)
    assert [leaf.shape for leaf in one[0]] == [(2,), (2, 1)]
    assert not np.array_equal(one[0][1], one[1][1])


async def test_a_lane_ends_by_bye_and_a_stream_without() -> None:
    """Leaving `lane` frees its slots; leaving `stream` in mid-lane is a cut stream."""
    async with TinyServer() as server:
        bench = Bench(server, ENV, {})
        async with bench.lane() as probe:
            await probe.reset(seeds=SEEDS)
            assert len(server.lanes) == 1
        await bench.wait_until_served()
        async with bench.stream() as probe:
            await probe.open(bench.open_request(resumable=True))
    assert len(server.lanes) == 1


async def _skips(bench: Bench) -> None:
    async with bench.lane():
        needs(False, "not here")


async def test_errors_leave_a_lane_as_themselves() -> None:
    """No ExceptionGroup around what a check raises inside of a lane."""
    async with TinyServer() as server:
        needs(True, "never")
        with pytest.raises(Skipped, match="not here"):
            await _skips(Bench(server, ENV, {}))


async def test_settled_waits_for_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries again, takes typed errors for a no, and gives up."""
    monkeypatch.setattr("asyncrl.conformance.bench.SETTLE_S", 0.25)
    tries: list[int] = []

    async def third_time() -> bool:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionFailed("not yet")
        return len(tries) == 3

    assert await settled(third_time)

    async def never() -> bool:
        return False

    assert not await settled(never)
