"""What searches found, as a learner wants it: policies to imitate, and returns of games that two play.

Invariants: the distance of logits from a policy is its cross-entropy over legal actions, without NaN where others are
masked (test_cross_entropy_knows_legal_actions_alone); returns of a game of two are those of the player to move, also
where the next player's are bootstrapped from (test_returns_are_those_of_who_moves).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asyncrl.config import PPOConfig
from asyncrl.errors import ConfigError
from asyncrl.learner.batches import Batch
from asyncrl.learner.model import ActorCritic
from asyncrl.learner.returns import gae
from asyncrl.learner.targets import segment_of
from asyncrl.records import Array, Unroll


class Found(NamedTuple):
    """Of a batch of [T, N] rows; `Unroll.kept` of lanes that a search acted for."""

    policy: Tensor  # f4 [T * N, A] on the batch's device
    weight: Tensor  # f4 [T * N]: 1 where there was a search, 0 elsewhere
    side: Array  # f4 [T, N]: 1, or -1 where the second player moves


def found_of(unrolls: Sequence[Unroll], device: torch.device) -> Found:
    """In the order of the batch that the unrolls make."""
    policy, weight, side = (
        np.concatenate([np.asarray(leaf, np.float32) for leaf in leaves], 1)
        for leaves in zip(*(unroll.kept for unroll in unrolls), strict=True)
    )
    valid = np.concatenate([unroll.valid for unroll in unrolls], 1)
    weight = np.where(valid, weight, np.float32(0.0))
    flat = torch.from_numpy(policy.reshape(-1, policy.shape[-1]))
    return Found(flat.to(device), torch.from_numpy(weight.reshape(-1)).to(device), side)


def check_actions(model: ActorCritic, config: PPOConfig) -> None:
    """ConfigError where the policy is no list of actions."""
    if model.head.num_noise != 1 or model.head.num_params < 2:
        raise ConfigError(f"search {config.search!r} learns policies over one Discrete action: this is another space")


def cross_entropy(logits: Tensor, mask: Tensor | None, policy: Tensor) -> Tensor:
    """[M], of `policy` [M, A], which has nothing on masked actions."""
    if mask is not None:
        logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
    return -(policy * torch.log_softmax(logits, -1)).sum(-1)


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """[]: of [M] values, 0 where nothing has weight."""
    return (values * weight).sum() / weight.sum().clamp(min=1.0)


def search_returns(
    model: ActorCritic, batch: Batch, reward: Array, side: Array, config: PPOConfig, *, games: bool
) -> Array:
    """f4 [T, N]: λ-returns over the values that searches found, for the player to move; `games`: there are two.

    `reward` f [T, N] is that of the player who moved. Where an unroll breaks off, the model of now values what came
    after it, which in a game of two is the other player's turn.
    """
    segment = segment_of(model, batch, side * reward, side * batch.value)
    after = -side if games else side
    segment.next_value[-1] *= after[-1]
    t, n = batch.end_rows[batch.end_rows[:, 0] < batch.num_steps - 1].T
    segment.next_value[t, n] *= after[t, n]
    found: Array = side * (gae(segment, config.gamma, config.gae_lambda) + side * batch.value)
    return found.astype(np.float32)
