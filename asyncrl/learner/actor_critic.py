"""`ActorCriticLearner`: what PPO and IMPALA do alike around their losses: batches, rewards, a step, and the state.

Invariants: a loss or gradient that is not finite changes no weight (test_a_loss_that_is_not_finite); a run that is
loaded goes on bit for bit (test_a_loaded_learner_goes_on_bit_for_bit); normalisers follow the rows that are trained
on, after the update (test_normalisers_follow_training_rows_alone).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from asyncrl.config import ActorCriticConfig
from asyncrl.errors import AsyncRLError
from asyncrl.learner.batches import Batch, Stage
from asyncrl.learner.dense_policy import DensePolicy, acts_densely
from asyncrl.learner.model import ActorCritic
from asyncrl.learner.optimisers import build_optimiser
from asyncrl.learner.publishing import Published
from asyncrl.learner.returns import check_fragments
from asyncrl.learner.rewards import train_reward
from asyncrl.learner.state_arrays import on_host, under
from asyncrl.learner.torch_policy import TorchPolicy
from asyncrl.params import ParamMailbox
from asyncrl.policy import Policy
from asyncrl.records import Array, Unroll

C = TypeVar("C", bound=ActorCriticConfig)


class NonFiniteUpdate(AsyncRLError):
    """A loss or its gradient is NaN or infinite. The weights are those before the step."""


class ActorCriticLearner(Generic[C]):
    """Owns the model's parameters. For one thread at a time."""

    replay: None = None  # what was learned from is gone

    def __init__(self, model: ActorCritic, config: C, device: str | torch.device = "cpu") -> None:
        self.model = model.to(device)
        self.config = config
        self.optimiser = build_optimiser(self.model, config)
        self._stage = Stage(torch.device(device))

    def policy(self, box: ParamMailbox[Published] | None, *, deterministic: bool, threads: int) -> Policy:
        """Acts with a copy of the model, which follows `box` where there is one."""
        kind, seed = DensePolicy if acts_densely(self.model) else TorchPolicy, self.config.seed
        return kind(self.model, seed, box, deterministic=deterministic, version=-1, threads=threads)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Copies on the host of everything that an update reads or writes, and the rest as JSON."""
        tensors = on_host("model/", self.model.state_dict())
        tensors |= {f"optimiser/{name}": tensor for name, tensor in self.optimiser.state().items()}
        return tensors, {"parameters": self.optimiser.names}

    def load(self, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
        """What `state` gave. Raises ValueError or RuntimeError if it is another model's."""
        self.model.load_state_dict(under("model/", tensors))
        self.optimiser.load(under("optimiser/", tensors), rest["parameters"])

    # -------------------------------------------------------------------------------- what an update is made of

    def _batch_of(self, unrolls: Sequence[Unroll]) -> Batch:
        """Good until the next one."""
        batch = self._stage.load(unrolls)
        check_fragments(batch.valid, batch.ended)
        return batch

    def _reward(self, batch: Batch) -> Array:
        """f8 [T, N]: what to train on."""
        scaler = self.model.rewards
        if scaler is not None:
            scaler.update(batch.reward, batch.begins, batch.ended, batch.valid, batch.fleet_slots)
        return train_reward(batch.reward, self.config, 1.0 if scaler is None else scaler.divisor)

    def _descend(self, loss: Tensor, learning_rate: float) -> float | None:
        """One step; the gradient's norm before it was limited, None where loss or gradient is not finite.

        Raises NonFiniteUpdate instead if the configuration says so.
        """
        gradient = self.optimiser.gradient(loss)
        norm, total = torch.stack([torch.linalg.vector_norm(gradient), loss.detach()]).tolist()
        if math.isfinite(norm) and math.isfinite(total):
            self.optimiser.step(gradient, norm, learning_rate, self.config.max_grad_norm)
            return float(norm)
        if self.config.nonfinite == "raise":
            raise NonFiniteUpdate(f"the loss is {total}, its gradient has norm {norm}")
        return None

    def _saw(self, batch: Batch) -> None:
        """Only after the update: log-probabilities of its rows were found with the statistics of before."""
        if self.model.normaliser is not None:
            self.model.normaliser.update(batch.obs, torch.from_numpy(batch.valid).to(batch.first.device))


def explained_variance(value: Array, target: Array) -> float:
    """1 - Var(target - value) / Var(target) of [M] rows; NaN where the targets do not vary, or are not finite."""
    with np.errstate(invalid="ignore"):
        variance = float(np.var(target))
        return math.nan if variance == 0.0 else 1.0 - float(np.var(target - value)) / variance
