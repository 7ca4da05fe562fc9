"""Every lane at its own pace, from asyncio: whoever has answered is stepped, and nobody waits for the slowest.

python examples/async_fleet.py                                     # starts a server of its own
python examples/async_fleet.py worker1:50051,worker2:50051         # uses servers that run already
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import numpy as np

import asyncrl


async def main(servers: str | None = None, num_arrivals: int = 1000) -> Counter[int]:
    """Random actions until so many arrivals have come; how many came from each lane."""
    rng = np.random.default_rng(1)
    arrivals: Counter[int] = Counter()
    async with asyncrl.connect(servers, env="CartPole-v1", num_envs=8, lanes=4, seed=1) as fleet:
        async for arrival in fleet:
            lane, rows = arrival.lane, arrival.rows
            if rows is None:
                print(f"{lane} is lost: {arrival.lost}; its next rows come from a replacement")
                continue
            arrivals[lane.index] += 1
            if arrivals.total() == num_arrivals:
                break
            lane.step([rng.integers(0, 2, lane.num_slots)])  # one array per action leaf
        print(f"{num_arrivals} arrivals: {dict(sorted(arrivals.items()))}")
        print(f"{fleet.stats.bytes_in / 1e3:.0f} kB received, {dict(fleet.stats.faults) or 'no faults'}")
    return arrivals


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
