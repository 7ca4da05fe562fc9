"""The Gymnasium loop that you have, on environments somewhere else.

python examples/remote_vector_env.py                                     # starts a server of its own
python examples/remote_vector_env.py worker1:50051,worker2:50051         # uses servers that run already
"""

from __future__ import annotations

import sys

import asyncrl


def main(servers: str | None = None, num_steps: int = 500) -> float:
    """Plays random actions; the mean return of the episodes that ended."""
    envs = asyncrl.RemoteVectorEnv("CartPole-v1", num_envs=8, servers=servers, lanes=2)
    obs, infos = envs.reset(seed=1)
    returns: list[float] = []
    lost = 0
    for _ in range(num_steps):
        obs, _rewards, _terminated, _truncated, infos = envs.step(envs.action_space.sample())
        if "episode" in infos:
            returns += infos["episode"]["r"][infos["_episode"]].tolist()
        if "asyncrl/lost" in infos:
            # These rows are no transitions: a simulator broke, and another one takes its place.
            lost += int(infos["_asyncrl/lost"].sum())
    envs.close()
    print(f"{obs.shape} observations, {len(returns)} episodes, {lost} lost rows")
    print(f"mean return {sum(returns) / len(returns):.1f}")
    return sum(returns) / len(returns)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
