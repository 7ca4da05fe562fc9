"""PPO: several epochs of clipped policy gradients over the unrolls of one round; A2C is one epoch without a clip.

What the surrogate and the value clip compare with is what the forward that acted said: log μ(a) and V of the unroll,
never recomputed (test_a_weight_update_between_acting_and_learning_shows). Advantages of data of the newest version are
GAE of those values. With `correction`, for older data, they are V-trace's, found anew before each epoch, and the
surrogate is clipped around μ all the same.

Invariants: an update equals a plain one in the same order (test_an_update_equals_a_plain_one); A2C has the gradient of
A2C (test_a2c_is_one_epoch_without_a_clip); a loss or gradient that is not finite changes no weight
(test_a_loss_that_is_not_finite); a run that is loaded goes on bit for bit (test_a_loaded_learner_goes_on_bit_for_bit).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from asyncrl.config import PPOConfig
from asyncrl.errors import AsyncRLError
from asyncrl.learner.batches import Batch, Stage
from asyncrl.learner.flat_adam import FlatAdam
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
from asyncrl.learner.publishing import Published
from asyncrl.learner.returns import check_fragments
from asyncrl.learner.rewards import train_reward
from asyncrl.learner.schedules import annealed
from asyncrl.learner.targets import TARGET, TargetRule, columns_of
from asyncrl.learner.torch_policy import TorchPolicy
from asyncrl.params import ParamMailbox
from asyncrl.records import Array, Unroll


class NonFiniteUpdate(AsyncRLError):
    """A loss or its gradient is NaN or infinite. The weights are those before the minibatch."""


class Losses(NamedTuple):
    """Of one minibatch; `log_ratio` [M] is ln π/μ of its rows."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    log_ratio: Tensor


class PPO:
    """Owns the model's parameters. For one thread at a time."""

    def __init__(self, model: ActorCritic, config: PPOConfig, device: str | torch.device = "cpu") -> None:
        self.model = model.to(device)
        self.config = config
        self._stage = Stage(torch.device(device))
        self.optimiser = FlatAdam(self.model, config.adam_eps)
        self._rng = np.random.default_rng(config.seed)
        corrects = config.correction == "vtrace" or (config.correction == "auto" and config.mode != "sync")
        self._rule = TargetRule(config.gamma, config.gae_lambda, corrects)
        self._minibatch = torch.compile(self._losses) if config.compile else self._losses

    # ------------------------------------------------------------------------------------------------ an update

    def update(self, unrolls: Sequence[Unroll], progress: float) -> dict[str, float]:
        """Train on one round; `progress` in [0, 1] is the share of the budget before it. Metrics under CleanRL's names:
        losses are means over the last epoch, the clip fraction over all."""
        config = self.config
        batch = self._stage.load(unrolls)
        check_fragments(batch.valid, batch.ended)
        record = _Record(annealed(config.learning_rate, progress, config.anneal_lr), self._clip(progress))
        if not batch.valid.any():
            return record.metrics(0.0)
        split = split_of(batch, config.num_minibatches)
        reward = self._reward(batch)
        columns = columns_of(self.model, batch, split, reward, self._rule)
        explained = explained_variance(batch.value[batch.valid], columns[TARGET].cpu().numpy()[batch.valid.reshape(-1)])
        for epoch in range(config.update_epochs):
            if epoch and self._rule.corrects:
                columns = columns_of(self.model, batch, split, reward, self._rule)
            self._epoch(batch, split, columns, record)
            if config.target_kl is not None and record.last_kl() > config.target_kl:
                break
        if self.model.normaliser is not None:
            # Only now: the log-probabilities of this round were found with the statistics of before.
            self.model.normaliser.update(batch.obs, torch.from_numpy(batch.valid).to(batch.first.device))
        return record.metrics(explained)

    def _reward(self, batch: Batch) -> Array:
        """f8 [T, N]: what to train on."""
        scaler = self.model.rewards
        if scaler is not None:
            scaler.update(batch.reward, batch.ended, batch.valid, batch.fleet_slots)
        return train_reward(batch.reward, self.config, 1.0 if scaler is None else scaler.divisor)

    def _clip(self, progress: float) -> float:
        clip = self.config.clip_coef
        return annealed(clip, progress, self.config.anneal_clip) if clip else math.inf

    def _epoch(self, batch: Batch, split: Split, columns: Tensor, record: _Record) -> None:
        record.begin_epoch()
        clip = torch.tensor(record.clip, device=columns.device)
        for part in split.parts(self._rng):
            losses = self._minibatch(batch, split, part, columns, clip)
            gradient = self.optimiser.gradient(losses.total)
            norm, total = torch.stack([torch.linalg.vector_norm(gradient), losses.total.detach()]).tolist()
            if math.isfinite(norm) and math.isfinite(total):
                self.optimiser.step(gradient, norm, record.learning_rate, self.config.max_grad_norm)
                record.add(losses, norm)
            elif self.config.nonfinite == "raise":
                raise NonFiniteUpdate(f"the loss is {total}, its gradient has norm {norm}")
            else:
                record.skip()

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
        return Losses(total, policy_loss, value_loss, mean_entropy, log_ratio)

    # ---------------------------------------------------------------------------------------------------- state

    def policy(self, box: ParamMailbox[Published] | None, *, deterministic: bool, threads: int) -> TorchPolicy:
        """Acts with a copy of the model, which follows `box` where there is one."""
        seed = self.config.seed
        return TorchPolicy(self.model, seed, box, deterministic=deterministic, version=-1, threads=threads)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Copies on the host of everything that an update reads or writes, and the rest as JSON."""
        tensors = {f"model/{name}": t.detach().to("cpu", copy=True) for name, t in self.model.state_dict().items()}
        tensors |= {f"optimiser/{name}": tensor for name, tensor in self.optimiser.state().items()}
        return tensors, {"parameters": self.optimiser.names, "shuffle": self._rng.bit_generator.state}

    def load(self, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
        """What `state` gave. Raises ValueError or RuntimeError if it is another model's."""
        self.model.load_state_dict(_under("model/", tensors))
        self.optimiser.load(_under("optimiser/", tensors), rest["parameters"])
        self._rng.bit_generator.state = rest["shuffle"]


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def explained_variance(value: Array, target: Array) -> float:
    """1 - Var(target - value) / Var(target) of [M] rows; NaN where the targets do not vary, or are not finite."""
    with np.errstate(invalid="ignore"):
        variance = float(np.var(target))
        return math.nan if variance == 0.0 else 1.0 - float(np.var(target - value)) / variance


class _Record:
    """What an update tells about itself. Tensors are read once, at the end."""

    def __init__(self, learning_rate: float, clip: float) -> None:
        self.learning_rate, self.clip = learning_rate, clip
        self._losses: list[Losses] = []  # of this epoch
        self._ratios: list[Tensor] = []  # of earlier epochs
        self._norms: list[float] = []
        self._num_epochs = self._num_skipped = 0

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
