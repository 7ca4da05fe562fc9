"""Targets and losses of Q-learning, per row: who calls weighs and averages them.

A row's `discount` is γ to the number of steps that its reward is of, and 0 where the episode terminated.

Invariants: a target is the value of the action that its rule chooses, never of one that is masked
(test_double_q_learning_where_the_two_disagree, test_masked_actions_are_no_target); projection keeps all mass, and the
mean where nothing is clipped (test_projection_keeps_mass_and_mean).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def best(q: Tensor, mask: Tensor | None) -> Tensor:
    """i8 [N]: of values [N, A] the action of the highest that `mask` b1 [N, A] allows."""
    if mask is not None:
        nothing = ~mask.any(1, keepdim=True)
        q = q.masked_fill(~(mask | nothing), -torch.inf)
    return q.argmax(1)


def chosen(values: Tensor, action: Tensor) -> Tensor:
    """[N, A] -> [N], or [N, A, num_atoms] -> [N, num_atoms], of actions i8 [N]."""
    # The gradient of a gather is several times as cheap as that of an index.
    if values.dim() == 2:
        return values.gather(1, action.unsqueeze(1)).squeeze(1)
    return values.gather(1, action.view(-1, 1, 1).expand(-1, 1, values.shape[2])).squeeze(1)


def td_target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """[N]"""
    return torch.addcmul(reward, discount, next_value)


def td_loss(q: Tensor, target: Tensor, kind: str) -> Tensor:
    """[N]: squared errors (mse), or Huber's, which are half of them up to 1 and straight beyond (huber)."""
    if kind == "mse":
        return F.mse_loss(q, target, reduction="none")
    return F.smooth_l1_loss(q, target, reduction="none")


def project(pmf: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """[N, num_atoms]: the distribution of reward + discount · z on the atoms of `support` again.

    `pmf` [N, num_atoms] is that of z. What lies between two atoms is shared by nearness, what lies beyond the support
    goes to its end.
    """
    last = len(support) - 1
    low, high = support[0], support[-1]
    returns = torch.addcmul(reward.unsqueeze(1), discount.unsqueeze(1), support)
    place = ((returns.clamp(low, high) - low) * (last / (high - low))).clamp(0, last)
    # The atom below, and at the upper end the last but one: it and the one above always share all there is.
    below = place.floor().clamp(max=last - 1)
    share = pmf * (place - below)
    index = below.long()
    found = torch.zeros_like(pmf)
    found.scatter_add_(1, index, pmf - share)
    found.scatter_add_(1, index + 1, share)
    return found


def distribution_loss(logits: Tensor, target: Tensor) -> Tensor:
    """[N]: cross-entropy of logits [N, num_atoms] with a target distribution."""
    return -(target * torch.log_softmax(logits, -1)).sum(-1)
