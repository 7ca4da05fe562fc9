"""What a batch is trained towards: advantages and value targets of every row.

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
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from asyncrl.learner.batches import Batch
from asyncrl.learner.importance import Importance, importance
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


class Targets(NamedTuple):
    """Of a batch of T * N rows."""

    columns: Tensor  # f4 [4, T * N] on the batch's device: log μ(a), V of acting, advantage, value target
    importance: Importance | None  # of the ratios, where there was something to correct


@torch.no_grad()
def targets_of(model: ActorCritic, batch: Batch, split: Split, reward: Array, rule: TargetRule) -> Targets:
    """`reward` f [T, N] is the one to train on."""
    weights: Importance | None = None
    if rule.corrects:
        log_prob, value = _evaluated(model, batch, split)
        rho = np.exp(log_prob - batch.log_prob)
        found = vtrace(segment_of(model, batch, reward, value), rho, rule.gamma, rule.gae_lambda)
        advantage, target = found.errors, found.targets
        weights = importance(rho[batch.valid])
    else:
        segment = segment_of(model, batch, reward, batch.value)
        advantage = gae(segment, rule.gamma, rule.gae_lambda)
        target = advantage + batch.value
    columns = np.stack([batch.log_prob, batch.value, advantage, target]).reshape(NUM_COLUMNS, -1)
    return Targets(torch.from_numpy(columns).to(batch.first.device), weights)


@torch.no_grad()
def segment_of(model: ActorCritic, batch: Batch, reward: Array, value: Array) -> Segment:
    """The batch as returns see it, with `value` f4 [T, N]; what follows ends and last rows is valued by the weights
    of now."""
    n = batch.num_slots
    after = model.step(batch.after, batch.after_first, _carry_after(model, batch)).value.float().cpu().numpy()
    following = next_values(value, after[:n], after[n:], batch.end_rows, batch.terminated)
    return Segment(reward, value, batch.valid, batch.ended, following)


def on_grid(batch: Batch, rows: Tensor, *values: Tensor) -> Array:
    """f4 [K, T, N]: each of the K `values` [M] of the rows t * N + n, where those are; 0 elsewhere."""
    found = torch.zeros(len(values), batch.valid.size, device=batch.first.device)
    found[:, rows] = torch.stack(values).float()
    grid: Array = found.cpu().numpy().reshape(len(values), *batch.valid.shape)
    return grid


def _carry_after(model: ActorCritic, batch: Batch) -> list[Tensor]:
    """Per carry leaf [N + E, *shape]: what the model carries to the observations of `batch.after`."""
    if not batch.carry:
        return []
    out = model.sequence(batch.obs, batch.first, batch.carry)
    t, n = torch.from_numpy(batch.end_rows).to(batch.first.device).unbind(1)
    return [torch.cat([leaf[-1], leaf[t, n]]) for leaf in out.carry]


def _evaluated(model: ActorCritic, batch: Batch, split: Split) -> Array:
    """ln π(a) and V of every valid row under the weights of now, f4 [2, T, N]; 0 elsewhere."""
    found = np.zeros((2, *batch.valid.shape), np.float32)
    for part in split.parts(None):
        params, value = split.forward(model, part)
        action, mask = batch.acts(part.rows)
        found += on_grid(batch, part.rows, model.head.log_prob(params, mask, action), value)
    return found
