"""Learning from searches: expert iteration, and PPO with what searches recommend beside its own losses.

Expert iteration plays what searches find. Its losses are the cross-entropy of the policy against theirs, and the
squared error of the value against λ-returns over the values that they found at the roots; at λ = 1 that is the outcome.
Searches cost more than gradients, so that each is learned from for several rounds.

Invariants: an update of either equals a plain one (test_an_update_imitates_the_search,
test_ppo_aux_adds_the_distance_to_its_loss); rows without a search teach no policy
(test_rows_without_a_search_teach_no_policy); an epoch is drawn from the last rounds, and older ones are forgotten
(test_an_epoch_is_drawn_from_the_last_rounds); a game of two stays one where a round has the turns of one player alone
(test_a_round_of_one_players_turns_is_of_a_game).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from asyncrl.config import PPOConfig
from asyncrl.errors import ConfigError
from asyncrl.learner.actor_critic import ActorCriticLearner, explained_variance
from asyncrl.learner.batches import Batch
from asyncrl.learner.exit_targets import Found, check_actions, cross_entropy, found_of, search_returns, weighted_mean
from asyncrl.learner.losses import squared_error
from asyncrl.learner.minibatches import Part
from asyncrl.learner.model import ActorCritic
from asyncrl.learner.ppo import PPO
from asyncrl.learner.schedules import annealed
from asyncrl.learner.state_arrays import under
from asyncrl.records import Array, Unroll


class Rows(NamedTuple):
    """M rows of a round, and what is learned from them."""

    obs: list[Tensor]  # per leaf [M, *shape]
    mask: Tensor | None  # b1 [M, A]
    policy: Tensor  # f4 [M, A]
    weight: Tensor  # f4 [M]: 1 where there was a search
    target: Tensor  # f4 [M]: of the value

    def select(self, index: Tensor) -> Rows:
        """Those of `index` i8 [K]."""
        mask = None if self.mask is None else self.mask[index]
        return Rows(
            [leaf[index] for leaf in self.obs], mask, self.policy[index], self.weight[index], self.target[index]
        )

    def named(self) -> dict[str, Tensor]:
        """Its tensors, on the host."""
        found = {f"obs{i}": leaf for i, leaf in enumerate(self.obs)}
        found |= {"policy": self.policy, "weight": self.weight, "target": self.target}
        if self.mask is not None:
            found["mask"] = self.mask
        return {name: tensor.cpu() for name, tensor in found.items()}

    @staticmethod
    def of(named: Mapping[str, Tensor], device: torch.device) -> Rows:
        """What `named` gave."""
        there = {name: tensor.to(device) for name, tensor in named.items()}
        obs = [there[f"obs{i}"] for i in range(sum(name.startswith("obs") for name in there))]
        return Rows(obs, there.get("mask"), there["policy"], there["weight"], there["target"])


class Exit(ActorCriticLearner[PPOConfig]):
    """Owns the model's parameters. For one thread at a time."""

    def __init__(self, model: ActorCritic, config: PPOConfig, device: str | torch.device = "cpu") -> None:
        check_actions(model, config)
        super().__init__(model, config, device)
        self._rng = np.random.default_rng(config.seed)
        self._games = False  # the second player has moved: in short unrolls both need not, and the game is still one
        self._window: deque[Rows] = deque(maxlen=config.search_window)  # of the last rounds, oldest first

    def update(self, unrolls: Sequence[Unroll], progress: float) -> dict[str, float]:
        """Train on this round and those before it; `progress` in [0, 1] is the share of the budget before it. Losses
        are means over the last epoch."""
        config = self.config
        batch = self._batch_of(unrolls)
        learning_rate = annealed(config.learning_rate, progress, config.anneal_lr)
        metrics = {"charts/learning_rate": learning_rate, "losses/skipped_minibatches": 0.0}
        if not batch.valid.any():
            return metrics
        found = found_of(unrolls, batch.first.device)
        self._games = self._games or bool((found.side < 0).any())
        returns = search_returns(self.model, batch, self._reward(batch), found.side, config, games=self._games)
        self._window.append(_rows_of(batch, found, returns))
        told: list[Tensor] = []
        for _ in range(config.update_epochs):
            told = []
            for rows in self._parts():
                losses = self._losses(rows)
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

    def _parts(self) -> Iterator[Rows]:
        """An epoch: as many rows as the newest round has, drawn from the whole window, each of them once at most."""
        window = self._window
        count = len(window[-1].target)
        # Rounds differ in length where rows are void: rows are numbered through all of them.
        everything = window[0] if len(window) == 1 else _joined(window)
        chosen = self._rng.permutation(len(everything.target))[:count]
        for part in torch.from_numpy(chosen).tensor_split(min(self.config.num_minibatches, count)):
            yield everything.select(part.to(everything.target.device))

    def _losses(self, rows: Rows) -> tuple[Tensor, ...]:
        """The sum; then, of the minibatch: distance, value loss, entropy, divergence of the policies."""
        config = self.config
        first = torch.zeros(len(rows.target), dtype=torch.bool, device=rows.target.device)
        out = self.model.step(rows.obs, first, [])
        distance = weighted_mean(cross_entropy(out.params, rows.mask, rows.policy), rows.weight)
        value_loss = squared_error(out.value, rows.target)
        entropy = self.model.head.entropy(out.params, rows.mask).mean()
        total = config.search_coef * distance - config.ent_coef * entropy + config.vf_coef * value_loss
        least = weighted_mean(torch.special.entr(rows.policy).sum(-1), rows.weight)  # the distance from itself
        return total, distance, value_loss, entropy, distance - least

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Copies on the host of everything that an update reads or writes, and the rest as JSON."""
        tensors, rest = super().state()
        for i, rows in enumerate(self._window):
            tensors |= {f"window/{i}/{name}": tensor for name, tensor in rows.named().items()}
        own = {"shuffle": self._rng.bit_generator.state, "window": len(self._window), "games": self._games}
        return tensors, rest | own

    def load(self, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
        """What `state` gave. Raises ValueError or RuntimeError if it is another model's."""
        super().load(tensors, rest)
        self._rng.bit_generator.state, self._games = rest["shuffle"], rest["games"]
        for i in range(rest["window"]):
            self._window.append(Rows.of(under(f"window/{i}/", tensors), self.model.device))


def _rows_of(batch: Batch, found: Found, returns: Array) -> Rows:
    """Copies of the valid rows: the batch's memory is used again."""
    device = batch.first.device
    index = torch.from_numpy(np.flatnonzero(batch.valid)).to(device)
    target = torch.from_numpy(returns.reshape(-1)).to(device)
    mask = None if batch.mask is None else batch.mask.flatten(0, 1)
    obs = [leaf.flatten(0, 1) for leaf in batch.obs]
    return Rows(obs, mask, found.policy, found.weight, target).select(index)


def _joined(window: Sequence[Rows]) -> Rows:
    """The rows of all. A round whose rows all came without a mask allows everything."""
    masks: list[Tensor] = []
    if any(rows.mask is not None for rows in window):
        masks = [torch.ones_like(rows.policy, dtype=torch.bool) if rows.mask is None else rows.mask for rows in window]
    return Rows(
        [torch.cat(leaves) for leaves in zip(*(rows.obs for rows in window), strict=True)],
        torch.cat(masks) if masks else None,
        torch.cat([rows.policy for rows in window]),
        torch.cat([rows.weight for rows in window]),
        torch.cat([rows.target for rows in window]),
    )


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
