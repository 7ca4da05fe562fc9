"""IMPALA: one policy-gradient step over a batch of unrolls, which V-trace corrects for the weights that acted.

The forward that the step is taken through is also the one that V-trace sees: its values and its ratios π/μ, taken as
constants. Weights are min(ρ̄, π/μ) on each row's advantage and on its value error, so that rows which the policy of now
would hardly produce count little. Losses are sums over the batch's rows, as where the limit of 40 on the gradient's
norm comes from, or means.

Invariants: an update equals a plain one written by hand (test_an_update_equals_a_plain_one); with the weights that
acted the gradient is that of A2C (test_fresh_data_have_the_gradient_of_a2c); sums are means times rows, in every part
of the loss (test_a_sum_is_the_mean_times_its_rows); nothing flows back through weights or targets
(test_targets_and_weights_are_constants).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asyncrl.config import ImpalaConfig
from asyncrl.learner.actor_critic import ActorCriticLearner, explained_variance
from asyncrl.learner.batches import Batch
from asyncrl.learner.importance import importance
from asyncrl.learner.losses import squared_error
from asyncrl.learner.minibatches import Part, Split, split_of
from asyncrl.learner.model import ActorCritic
from asyncrl.learner.returns import vtrace
from asyncrl.learner.schedules import annealed
from asyncrl.learner.targets import on_grid, segment_of
from asyncrl.records import Array, Unroll


class Evaluated(NamedTuple):
    """What the weights of now say of the batch's M valid rows."""

    log_prob: Tensor  # [M], of the stored actions
    entropy: Tensor  # [M]
    value: Tensor  # [M]


class Corrected(NamedTuple):
    """Constants of the step, [M] each."""

    advantage: Tensor  # with its weight
    target: Tensor


class Impala(ActorCriticLearner[ImpalaConfig]):
    """Owns the model's parameters. For one thread at a time."""

    def __init__(self, model: ActorCritic, config: ImpalaConfig, device: str | torch.device = "cpu") -> None:
        super().__init__(model, config, device)
        self._forward = torch.compile(self._evaluate) if config.compile else self._evaluate

    def update(self, unrolls: Sequence[Unroll], progress: float) -> dict[str, float]:
        """One step; `progress` in [0, 1] is the share of the budget before it. Losses are told as means."""
        config = self.config
        batch = self._batch_of(unrolls)
        learning_rate = annealed(config.learning_rate, progress, config.anneal_lr)
        metrics = {"charts/learning_rate": learning_rate, "losses/skipped_steps": 0.0}
        if not batch.valid.any():
            return metrics
        split = split_of(batch, 1)
        (part,) = split.parts(None)
        found = self._forward(batch, split, part)
        corrected = self._corrected(batch, part, found, metrics)
        policy_loss = -(corrected.advantage * found.log_prob).mean()
        value_loss, entropy = squared_error(found.value, corrected.target), found.entropy.mean()
        total = policy_loss - config.ent_coef * entropy + config.vf_coef * value_loss
        norm = self._descend(total * len(part.rows) if config.reduction == "sum" else total, learning_rate)
        self._saw(batch)
        if norm is None:
            return metrics | {"losses/skipped_steps": 1.0}
        told = torch.stack([policy_loss, value_loss, entropy]).tolist()
        names = ("losses/policy_loss", "losses/value_loss", "losses/entropy")
        return metrics | dict(zip(names, told, strict=True)) | {"losses/grad_norm": norm}

    def _evaluate(self, batch: Batch, split: Split, part: Part) -> Evaluated:
        params, value = split.forward(self.model, part)
        action, mask = batch.acts(part.rows)
        return Evaluated(*self.model.head.evaluate(params, mask, action), value)

    def _corrected(self, batch: Batch, part: Part, found: Evaluated, metrics: dict[str, float]) -> Corrected:
        """What V-trace makes of it; how far the data was from the policy goes into `metrics`."""
        config = self.config
        log_prob, value = on_grid(batch, part.rows, found.log_prob.detach(), found.value.detach())
        log_ratio: Array = log_prob - batch.log_prob
        rho, bars = np.exp(log_ratio), (config.rho_bar, config.c_bar)
        segment = segment_of(self.model, batch, self._reward(batch), value)
        traced = vtrace(segment, rho, config.gamma, config.gae_lambda, *bars)
        valid = batch.valid
        metrics |= importance(rho[valid], *bars).metrics()
        metrics["losses/approx_kl"] = float(np.mean(rho[valid] - 1.0 - log_ratio[valid]))
        metrics["losses/explained_variance"] = explained_variance(value[valid], traced.targets[valid])
        columns = np.stack([traced.advantages, traced.targets]).reshape(2, -1)
        return Corrected(*torch.from_numpy(columns).to(part.rows.device).index_select(1, part.rows).unbind(0))
