"""The clock of a loop is that loop's, virtual or not."""

from __future__ import annotations

import asyncio

from asyncrl.client.seams import LoopClock
from tests.rig.sim_loop import run_sim


def test_the_clock_is_the_loops() -> None:
    """On virtual time hours pass in no time, and timers run at theirs."""

    async def main() -> list[float]:
        clock = LoopClock()
        found: list[float] = []
        clock.call_later(1800.0, lambda: found.append(clock.now()))
        cancelled = clock.call_later(10.0, lambda: found.append(-1.0))
        cancelled.cancel()
        await clock.sleep(3600.0)
        found.append(asyncio.get_running_loop().time())
        return found

    assert run_sim(main, 0, limit_s=4000.0) == [1800.0, 3600.0]
