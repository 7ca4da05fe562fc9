"""Look ahead in an environment of this process: no server, no network, nothing learned.

python -m examples.search_lake                # FrozenLake that does not slip: to the goal, if not by the shortest way
python -m examples.search_lake 0.3            # it slips, and the search does not know when
"""

from __future__ import annotations

import asyncio
import sys

import gymnasium
import numpy as np

from asyncrl.search import SearchConfig
from asyncrl.search.local import action_of, search_env


async def main(slips: float = 0.0, num_simulations: int = 200, seed: int = 1) -> float:
    """One episode; what it returned."""
    env = gymnasium.make("FrozenLake-v1", is_slippery=slips > 0, success_rate=1 - slips)
    env.reset(seed=seed)
    # Where there is luck, each simulation draws the whole way from the root anew.
    config = SearchConfig(
        num_simulations=num_simulations, leaf="rollout", rng="open_loop" if slips > 0 else "frozen", discount=0.99
    )
    rng, steps = np.random.default_rng(seed), 0
    while True:
        result = await search_env(env, config, rng)
        _obs, reward, terminated, truncated, _info = env.step(action_of(env.action_space, result))
        steps += 1
        print(f"step {steps}: action {result.action} of visits {result.visits.tolist()}, worth {result.root_value:.3f}")
        if terminated or truncated:
            print("the goal" if float(reward) > 0 else "a hole, or too late")
            return float(reward)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0))
