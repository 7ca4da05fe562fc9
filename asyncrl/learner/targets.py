"""What a batch is trained towards: behind log μ(a) and V of acting, advantages and value targets of every row.

GAE takes the values that acting saw. V-trace, for data of older weights, takes those of the weights of now, and
min(1, π/μ); it gives the errors r + γ q' - V as advantages, without its own weight on them, as the ratio of the
surrogate is that weight already.

Invariants: what follows a truncated row is V of its true last observation, on which nothing of the next episode
depends (test_bootstraps_come_from_the_last_observation); with unchanged weights both rules agree
(test_corrected_targets_of_fresh_data_are_those_of_gae); value targets are raw advantages plus values
(test_targets_minus_values_are_raw_advantages).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from asyncrl.learner.batches import Batch
from asyncrl.learner.minibatches import Split
from asyncrl.learner.model import ActorCritic
from asyncrl.learner.returns import Segment, gae, next_values, vtrace
from asyncrl.records import Array

LOG_MU, ACTED_VALUE, ADVANTAGE, TARGET = range(4)
NUM_COLUMNS: Final = 4


@dataclass(frozen=True)
class TargetRule:
    """`corrects`: V-trace under the weights of now, else GAE of the values of acting."""

    gamma: float
    gae_lambda: float
    corrects: bool


@torch.no_grad()
def columns_of(model: ActorCritic, batch: Batch, split: Split, reward: Array, rule: TargetRule) -> Tensor:
    """f4 [4, T * N] on the batch's device; `reward` f [T, N] is the one to train on."""
    n = batch.num_slots
    after = model.step(batch.after, batch.after_first, _carry_after(model, batch)).value.float().cpu().numpy()
    log_prob, value = _evaluated(model, batch, split) if rule.corrects else (batch.log_prob, batch.value)
    following = next_values(value, after[:n], after[n:], batch.end_rows, batch.terminated)
    segment = Segment(reward, value, batch.valid, batch.ended, following)
    if rule.corrects:
        found = vtrace(segment, np.exp(log_prob - batch.log_prob), rule.gamma, rule.gae_lambda)
        advantage, target = found.errors, found.targets
    else:
        advantage = gae(segment, rule.gamma, rule.gae_lambda)
        target = advantage + value
    columns = np.stack([batch.log_prob, batch.value, advantage, target]).reshape(NUM_COLUMNS, -1)
    return torch.from_numpy(columns).to(batch.first.device)


def _carry_after(model: ActorCritic, batch: Batch) -> list[Tensor]:
    """Per carry leaf [N + E, *shape]: what the model carries to the observations of `batch.after`."""
    if not batch.carry:
        return []
    out = model.sequence(batch.obs, batch.first, batch.carry)
    t, n = torch.from_numpy(batch.end_rows).to(batch.first.device).unbind(1)
    return [torch.cat([leaf[-1], leaf[t, n]]) for leaf in out.carry]


def _evaluated(model: ActorCritic, batch: Batch, split: Split) -> tuple[Array, Array]:
    """ln π(a) and V of every valid row under the weights of now, f4 [T, N] each; 0 elsewhere."""
    found = torch.zeros(2, batch.valid.size, device=batch.first.device)
    for part in split.parts(None):
        params, value = split.forward(model, part)
        action, mask = batch.acts(part.rows)
        found[0, part.rows] = model.head.log_prob(params, mask, action).float()
        found[1, part.rows] = value.float()
    log_prob, values = found.cpu().numpy().reshape(2, *batch.valid.shape)
    return log_prob, values
