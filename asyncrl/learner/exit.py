"""Learning from searches: expert iteration, and PPO with what searches recommend beside its own losses.

Expert iteration plays what searches find. Its losses are the cross-entropy of the policy against theirs, and the
squared error of the value against λ-returns over the values that they found at the roots; at λ = 1 that is the outcome.

Invariants: an update of either equals a plain one (test_an_update_imitates_the_search,
test_ppo_aux_adds_the_distance_to_its_loss); rows without a search teach no policy
(test_rows_without_a_search_teach_no_policy).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.config import PPOConfig
from asyncrl.errors import ConfigError
from asyncrl.learner.actor_critic import ActorCriticLearner, explained_variance
from asyncrl.learner.batches import Batch
from asyncrl.learner.exit_targets import Found, check_actions, cross_entropy, found_of, search_returns, weighted_mean
from asyncrl.learner.losses import squared_error
from asyncrl.learner.minibatches import Part, Split, split_of
from asyncrl.learner.model import ActorCritic
from asyncrl.learner.ppo import PPO
from asyncrl.learner.schedules import annealed
from asyncrl.records import Unroll


class Exit(ActorCriticLearner[PPOConfig]):
    """Owns the model's parameters. For one thread at a time."""

    def __init__(self, model: ActorCritic, config: PPOConfig, device: str | torch.device = "cpu") -> None:
        check_actions(model, config)
        super().__init__(model, config, device)
        self._rng = np.random.default_rng(config.seed)

    def update(self, unrolls: Sequence[Unroll], progress: float) -> dict[str, float]:
        """Train on one round; `progress` in [0, 1] is the share of the budget before it. Losses are means over the last
        epoch."""
        config = self.config
        batch = self._batch_of(unrolls)
        learning_rate = annealed(config.learning_rate, progress, config.anneal_lr)
        metrics = {"charts/learning_rate": learning_rate, "losses/skipped_minibatches": 0.0}
        if not batch.valid.any():
            return metrics
        found = found_of(unrolls, batch.first.device)
        returns = search_returns(self.model, batch, self._reward(batch), found.side, config)
        split = split_of(batch, config.num_minibatches)
        target = torch.from_numpy(returns.reshape(-1)).to(batch.first.device)
        told: list[Tensor] = []
        for _ in range(config.update_epochs):
            told = []
            for part in split.parts(self._rng):
                losses = self._losses(batch, split, part, found, target)
                norm = self._descend(losses[0], learning_rate)
                metrics["losses/skipped_minibatches"] += norm is None
                told.append(torch.stack(losses).detach())
        self._saw(batch)
        names = ("losses/loss", "losses/search_loss", "losses/value_loss", "losses/entropy", "losses/search_kl")
        metrics |= dict(zip(names, torch.stack(told).mean(0).tolist(), strict=True))
        valid = batch.valid
        metrics["losses/explained_variance"] = explained_variance(batch.value[valid], returns[valid])
        metrics["search/share"] = float(found.weight.sum()) / float(valid.sum())
        return metrics

    def _losses(self, batch: Batch, split: Split, part: Part, found: Found, target: Tensor) -> tuple[Tensor, ...]:
        """The sum; then, of the minibatch: distance, value loss, entropy, divergence of the policies."""
        config = self.config
        params, value = split.forward(self.model, part)
        _, mask = batch.acts(part.rows)
        policy, weight = found.policy.index_select(0, part.rows), found.weight.index_select(0, part.rows)
        distance = weighted_mean(cross_entropy(params, mask, policy), weight)
        value_loss = squared_error(value, target.index_select(0, part.rows))
        entropy = self.model.head.entropy(params, mask).mean()
        total = config.search_coef * distance - config.ent_coef * entropy + config.vf_coef * value_loss
        least = weighted_mean(torch.special.entr(policy).sum(-1), weight)  # the distance from itself
        return total, distance, value_loss, entropy, distance - least

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Copies on the host of everything that an update reads or writes, and the rest as JSON."""
        tensors, rest = super().state()
        return tensors, rest | {"shuffle": self._rng.bit_generator.state}

    def load(self, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
        """What `state` gave. Raises ValueError or RuntimeError if it is another model's."""
        super().load(tensors, rest)
        self._rng.bit_generator.state = rest["shuffle"]


class SearchedPPO(PPO):
    """PPO, with the distance from what searches recommend at some of the states beside its losses."""

    def __init__(self, model: ActorCritic, config: PPOConfig, device: str | torch.device = "cpu") -> None:
        check_actions(model, config)
        super().__init__(model, config, device)
        self._found: Found | None = None  # of the update that is under way
        self._distances: list[Tensor] = []

    def update(self, unrolls: Sequence[Unroll], progress: float) -> dict[str, float]:
        """See `PPO.update`."""
        self._found, self._distances = found_of(unrolls, self.model.device), []
        if (self._found.side < 0).any():
            raise ConfigError("search 'ppo-aux' is for one player: games of two are learned with search 'exit'")
        metrics = super().update(unrolls, progress)
        if self._distances:
            metrics["losses/search_loss"] = float(torch.stack(self._distances).mean())
            metrics["search/share"] = float(self._found.weight.sum()) / sum(unroll.num_valid for unroll in unrolls)
        return metrics

    def _beside(self, params: Tensor, mask: Tensor | None, part: Part) -> Tensor:
        assert self._found is not None
        policy, weight = (leaf.index_select(0, part.rows) for leaf in self._found[:2])
        distance = weighted_mean(cross_entropy(params, mask, policy), weight)
        self._distances.append(distance.detach())
        return self.config.search_coef * distance
