"""A training loop in the style of CleanRL. What makes it remote is one line, marked below.

REINFORCE with a linear policy and a running baseline; NumPy alone.

    python examples/one_line.py [worker1:50051,worker2:50051]
"""

from __future__ import annotations

import sys

import numpy as np

import asyncrl

NUM_ENVS, NUM_STEPS, NUM_ITERATIONS, GAMMA, LEARNING_RATE = 16, 64, 60, 0.98, 0.05


def main(servers: str | None = None, num_iterations: int = NUM_ITERATIONS) -> list[float]:
    """Trains; the mean return after each iteration."""
    # envs = gymnasium.make_vec("CartPole-v1", NUM_ENVS, vector_kwargs={"autoreset_mode": "SameStep"})
    envs = asyncrl.RemoteVectorEnv("CartPole-v1", NUM_ENVS, servers)  # <- the one line

    rng = np.random.default_rng(1)
    weights, baseline = np.zeros((5, 2)), 0.0
    recent: list[float] = []
    history: list[float] = []
    obs, _ = envs.reset(seed=1)
    for _iteration in range(num_iterations):
        gradients = np.zeros((NUM_STEPS, NUM_ENVS, 5, 2))
        rewards = np.zeros((NUM_STEPS, NUM_ENVS))
        goes_on = np.zeros((NUM_STEPS, NUM_ENVS))
        for step in range(NUM_STEPS):
            features = np.concatenate([obs, np.ones((NUM_ENVS, 1))], axis=1)
            logits = features @ weights
            probabilities = np.exp(logits - logits.max(1, keepdims=True))
            probabilities /= probabilities.sum(1, keepdims=True)
            actions = (rng.random(NUM_ENVS) < probabilities[:, 1]).astype(np.int64)
            obs, rewards[step], terminated, truncated, infos = envs.step(actions)
            goes_on[step] = ~(terminated | truncated)
            gradients[step] = features[:, :, None] * (np.eye(2)[actions] - probabilities)[:, None, :]
            if "episode" in infos:
                recent = [*recent, *infos["episode"]["r"][infos["_episode"]].tolist()][-50:]
        returns, following = np.zeros((NUM_STEPS, NUM_ENVS)), np.full(NUM_ENVS, baseline)
        for step in reversed(range(NUM_STEPS)):
            following = returns[step] = rewards[step] + GAMMA * goes_on[step] * following
        baseline += 0.1 * (returns.mean() - baseline)
        advantages = (returns - baseline) / (returns.std() + 1e-8)
        weights += LEARNING_RATE * np.einsum("te,tefa->fa", advantages, gradients) / NUM_STEPS
        history.append(float(np.mean(recent)) if recent else 0.0)
    print(f"mean return {history[min(4, len(history) - 1)]:.0f} -> {history[-1]:.0f}")
    envs.close()
    return history


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
