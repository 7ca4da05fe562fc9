"""PPO: several epochs of clipped policy gradients over the unrolls of one round; A2C is one epoch without a clip.

What the surrogate and the value clip compare with is what the forward that acted said: log μ(a) and V of the unroll,
never recomputed (test_a_weight_update_between_acting_and_learning_shows). Advantages of data of the newest version are
GAE of those values. With `correction`, for older data, they are V-trace's, found anew before each epoch, and the
surrogate is clipped around μ all the same.

Invariants: an update equals a plain one in the same order (test_an_update_equals_a_plain_one); A2C has the gradient of
A2C (test_a2c_is_one_epoch_without_a_clip); a correction is found anew for each epoch
(test_correction_is_found_anew_for_each_epoch).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from asyncrl.config import PPOConfig
from asyncrl.learner.actor_critic import ActorCriticLearner, explained_variance
from asyncrl.learner.batches import Batch
from asyncrl.learner.importance import Importance
from asyncrl.learner.losses import (
    clipped_squared_error,
    clipped_surrogate,
    divergence,
    normalised,
    squared_error,
    surrogate,
)
from asyncrl.learner.minibatches import Part, Split, split_of
from asyncrl.learner.model import ActorCritic
from asyncrl.learner.schedules import annealed
from asyncrl.learner.targets import TARGET, TargetRule, targets_of
from asyncrl.records import Unroll


class Losses(NamedTuple):
    """Of one minibatch; `log_ratio` [M] is ln π/μ of its rows."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    log_ratio: Tensor


class PPO(ActorCriticLearner[PPOConfig]):
    """Owns the model's parameters. For one thread at a time."""

    def __init__(self, model: ActorCritic, config: PPOConfig, device: str | torch.device = "cpu") -> None:
        super().__init__(model, config, device)
        self._rng = np.random.default_rng(config.seed)
        corrects = config.correction == "vtrace" or (config.correction == "auto" and config.mode != "sync")
        self._rule = TargetRule(config.gamma, config.gae_lambda, corrects)
        self._minibatch = torch.compile(self._losses) if config.compile else self._losses

    # ------------------------------------------------------------------------------------------------ an update

    def update(self, unrolls: Sequence[Unroll], progress: float) -> dict[str, float]:
        """Train on one round; `progress` in [0, 1] is the share of the budget before it. Metrics under CleanRL's names:
        losses are means over the last epoch, the clip fraction over all."""
        config = self.config
        batch = self._batch_of(unrolls)
        record = _Record(annealed(config.learning_rate, progress, config.anneal_lr), self._clip(progress))
        if not batch.valid.any():
            return record.metrics(0.0)
        split = split_of(batch, config.num_minibatches)
        reward = self._reward(batch)
        columns, record.importance = targets_of(self.model, batch, split, reward, self._rule)
        explained = explained_variance(batch.value[batch.valid], columns[TARGET].cpu().numpy()[batch.valid.reshape(-1)])
        for epoch in range(config.update_epochs):
            if epoch and self._rule.corrects:
                columns = targets_of(self.model, batch, split, reward, self._rule).columns
            self._epoch(batch, split, columns, record)
            if config.target_kl is not None and record.last_kl() > config.target_kl:
                break
        self._saw(batch)
        return record.metrics(explained)

    def _clip(self, progress: float) -> float:
        clip = self.config.clip_coef
        return annealed(clip, progress, self.config.anneal_clip) if clip else math.inf

    def _epoch(self, batch: Batch, split: Split, columns: Tensor, record: _Record) -> None:
        record.begin_epoch()
        clip = torch.tensor(record.clip, device=columns.device)
        for part in split.parts(self._rng):
            losses = self._minibatch(batch, split, part, columns, clip)
            norm = self._descend(losses.total, record.learning_rate)
            if norm is None:
                record.skip()
            else:
                record.add(losses, norm)

    def _losses(self, batch: Batch, split: Split, part: Part, columns: Tensor, clip: Tensor) -> Losses:
        config = self.config
        log_mu, acted, advantage, target = columns.index_select(1, part.rows).unbind(0)
        params, value = split.forward(self.model, part)
        action, mask = batch.acts(part.rows)
        log_prob, entropy = self.model.head.evaluate(params, mask, action)
        if config.norm_adv:
            advantage = normalised(advantage)
        log_ratio = log_prob - log_mu
        clips = config.clip_coef > 0.0
        policy_loss = clipped_surrogate(log_ratio, advantage, clip) if clips else surrogate(log_ratio, advantage)
        if clips and config.clip_vloss:
            value_loss = clipped_squared_error(value, target, acted, clip)
        else:
            value_loss = squared_error(value, target)
        mean_entropy = entropy.mean()
        total = policy_loss - config.ent_coef * mean_entropy + config.vf_coef * value_loss
        total = total + self._beside(params, mask, part)
        return Losses(total, policy_loss, value_loss, mean_entropy, log_ratio)

    def _beside(self, params: Tensor, mask: Tensor | None, part: Part) -> Tensor | float:
        """What else is minimised."""
        return 0.0

    # ---------------------------------------------------------------------------------------------------- state

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Copies on the host of everything that an update reads or writes, and the rest as JSON."""
        tensors, rest = super().state()
        return tensors, rest | {"shuffle": self._rng.bit_generator.state}

    def load(self, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
        """What `state` gave. Raises ValueError or RuntimeError if it is another model's."""
        super().load(tensors, rest)
        self._rng.bit_generator.state = rest["shuffle"]


class _Record:
    """What an update tells about itself. Tensors are read once, at the end."""

    def __init__(self, learning_rate: float, clip: float) -> None:
        self.learning_rate, self.clip = learning_rate, clip
        self._losses: list[Losses] = []  # of this epoch
        self._ratios: list[Tensor] = []  # of earlier epochs
        self._norms: list[float] = []
        self._num_epochs = self._num_skipped = 0
        self.importance: Importance | None = None  # at the first epoch

    def begin_epoch(self) -> None:
        self._ratios += [losses.log_ratio for losses in self._losses]
        self._losses.clear()
        self._num_epochs += 1

    def skip(self) -> None:
        self._num_skipped += 1

    def add(self, losses: Losses, norm: float) -> None:
        self._losses.append(Losses(*(tensor.detach() for tensor in losses)))
        self._norms.append(norm)

    def last_kl(self) -> float:
        """The divergence that the epoch's last minibatch found, as CleanRL's early stop has it."""
        return float(divergence(self._losses[-1].log_ratio, self.clip).approx_kl) if self._losses else 0.0

    def metrics(self, explained: float) -> dict[str, float]:
        found = {
            "charts/learning_rate": self.learning_rate,
            "charts/clip_coef": self.clip,
            "losses/explained_variance": explained,
            "losses/epochs": float(self._num_epochs),
            "losses/skipped_minibatches": float(self._num_skipped),
        }
        if self.importance is not None:
            found |= self.importance.metrics()
        if not self._losses:
            return found
        means = torch.stack([torch.stack(losses[1:4]) for losses in self._losses]).mean(0)
        last = divergence(torch.cat([losses.log_ratio for losses in self._losses]), self.clip)
        every = torch.cat(self._ratios + [losses.log_ratio for losses in self._losses])
        clipfrac = divergence(every, self.clip).clipfrac
        read = torch.cat([means, torch.stack([last.old_approx_kl, last.approx_kl, clipfrac])]).tolist()
        names = ("policy_loss", "value_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac")
        found |= {f"losses/{name}": value for name, value in zip(names, read, strict=True)}
        found["losses/grad_norm"] = sum(self._norms) / len(self._norms)
        return found
