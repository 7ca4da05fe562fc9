"""DQN, and what the years have added to it: double, dueling, n-step, prioritized, distributional and noisy; Ape-X.

An update takes the unrolls of a round into the replay and then the gradient steps that are due: `gradient_steps` for
each num_envs × num_steps environment steps, counted in whole numbers, so that rounds of any size keep the ratio. Until
`learning_starts` environment steps none are due. What happens every so often happens by environment steps.

Invariants: an update equals a plain one with the same draws (test_an_update_equals_a_plain_one); gradient steps per
environment step are what was asked for (test_the_replay_ratio_is_held); the target network follows by environment
steps, whether episodes end or not (test_the_target_follows_in_an_endless_episode), and nothing else changes it
(test_no_gradient_reaches_the_target); the exponent of the weights is that of the budget
(test_beta_goes_by_the_budget); a loss that is not finite changes no weight (test_a_loss_that_is_not_finite); a learner
that is loaded goes on bit for bit (test_a_loaded_learner_goes_on_bit_for_bit); a replay that a round may not fit into
is refused (test_a_replay_that_cannot_hold_a_round_of_stacks_is_refused).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from asyncrl.buffers.replay import Replay, ReplayConfig, Sample
from asyncrl.config import DQNConfig
from asyncrl.errors import ConfigError
from asyncrl.learner.actor_critic import NonFiniteUpdate
from asyncrl.learner.exploration import Exploration
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.optimisers import build_optimiser
from asyncrl.learner.publishing import Published, tensors_of
from asyncrl.learner.q_losses import best, chosen, distribution_loss, project, td_loss, td_target
from asyncrl.learner.q_network import QShape, build_q_network
from asyncrl.learner.q_policy import QPolicy
from asyncrl.learner.rewards import train_reward
from asyncrl.learner.schedules import annealed, crossings
from asyncrl.learner.staging import Staging
from asyncrl.learner.state_arrays import on_host, under
from asyncrl.params import ParamMailbox
from asyncrl.records import Unroll
from asyncrl.wire.spec import LaneSpec

SHOWN: Final = ("losses/td_loss", "losses/q_values", "losses/grad_norm")  # means over the gradient steps of a round
LEAST_PRIORITY: Final = 1e-6  # added to every error: a transition that was learned is drawn again all the same


class DQN:
    """Owns network, target network and replay. For one thread at a time. ConfigError where the replay is too small."""

    def __init__(self, spec: LaneSpec, config: DQNConfig, device: torch.device) -> None:
        _check_buffer(spec, config)
        self.config = config
        shape = QShape.of(config)
        self.model = build_q_network(spec, ModelConfig.of(config), shape, config.seed).to(device)
        self.target = copy.deepcopy(self.model).eval().requires_grad_(False)
        self.optimiser = build_optimiser(self.model, config)
        self.replay = Replay(spec, replay_config(config))
        self.exploration = Exploration(config)
        self.steps = 0  # of environments, that came so far
        self.num_updates = 0  # gradient steps so far
        self._credit = 0  # environment steps × gradient_steps that no gradient step was taken for
        self._rng = np.random.default_rng(config.seed)  # of draws and of noise
        self._staging = Staging(device)
        self._start = self.model.actions.start
        self._target_of: Callable[..., Tensor] = self._targets
        self._loss_of: Callable[..., tuple[Tensor, Tensor, Tensor]] = self._losses
        if config.compile:
            self._target_of, self._loss_of = torch.compile(self._targets), torch.compile(self._losses)
        self._shown: dict[str, float] = {}  # of the last gradient steps

    # ------------------------------------------------------------------------------------------------ an update

    def update(self, unrolls: Sequence[Unroll], progress: float) -> dict[str, float]:
        """Take a round in and learn; `progress` in [0, 1] is the share of the budget before it."""
        config, before = self.config, self.steps
        for unroll in unrolls:
            self._insert(unroll)
        self.steps += sum(unroll.num_valid for unroll in unrolls)
        rate = annealed(config.learning_rate, progress, config.anneal_lr)
        beta = config.beta + (config.beta_final - config.beta) * progress
        self._learn(self._due(before), beta, rate)
        self._follow(crossings(before, self.steps, config.target_network_frequency))
        counted = max(self.steps - config.learning_starts, 1)
        return self._shown | {
            "charts/learning_rate": rate,
            "charts/epsilon": self.exploration.mean_at(before),
            "replay/size": float(len(self.replay)),
            "replay/ratio": self.num_updates / counted,
            "replay/beta": beta,
        }

    def _insert(self, unroll: Unroll) -> None:
        q_taken = unroll.kept[0] if self.config.actor_priorities else None
        self.replay.insert(unroll, train_reward(unroll.reward, self.config), q_taken)

    def _due(self, before: int) -> int:
        """Gradient steps for the environment steps since `before`."""
        config = self.config
        new = max(self.steps - max(before, config.learning_starts), 0)
        if not new or not len(self.replay):
            return 0
        if config.gradient_steps == -1:
            return new
        self._credit += new * config.gradient_steps
        count, self._credit = divmod(self._credit, config.batch_size)
        return count

    def _learn(self, count: int, beta: float, rate: float) -> None:
        """`count` gradient steps."""
        sums, good = np.zeros(len(SHOWN)), 0
        for _ in range(count):
            sample = self.replay.sample(self.config.minibatch_size, self._rng, beta)
            total, error, q = self._forward(*self._tensors(sample))
            gradient = self.optimiser.gradient(total)
            norm, loss, mean_q = torch.stack([torch.linalg.vector_norm(gradient), total.detach(), q]).tolist()
            if math.isfinite(norm) and math.isfinite(loss):
                self.optimiser.step(gradient, norm, rate, self.config.max_grad_norm)
                self._prioritise(sample, error)
                sums += (loss, mean_q, norm)
                good += 1
            elif self.config.nonfinite == "raise":
                raise NonFiniteUpdate(f"the loss is {loss}, its gradient has norm {norm}")
        self.num_updates += count
        if good:
            self._shown = dict(zip(SHOWN, (sums / good).tolist(), strict=True))
        if count:
            self._shown["losses/skipped_minibatches"] = float(count - good)

    def _prioritise(self, sample: Sample, error: Tensor) -> None:
        if self.config.prioritized:
            priorities = np.abs(error.cpu().numpy().astype(np.float64)) + LEAST_PRIORITY
            self.replay.update_priorities(sample.rows, sample.generations, priorities)

    # ------------------------------------------------------------------------------------------------ losses

    def _tensors(self, sample: Sample) -> tuple[list[Tensor], list[Tensor], Tensor | None, Tensor, Tensor]:
        """Observations, next observations, next mask, actions i8 [N] from 0, and reward, discount and weight
        f4 [3, N]."""
        upload = self._staging.upload
        obs, next_obs = upload("obs", sample.obs), upload("next_obs", sample.next_obs)
        mask = None if sample.next_mask is None else upload("mask", [sample.next_mask])[0]
        action = sample.action[0].astype(np.int64) - self._start
        numbers = np.stack([sample.reward, sample.discount, sample.weights]).astype(np.float32, copy=False)
        return obs, next_obs, mask, *upload("numbers", [action, numbers])  # type: ignore[return-value]

    def _forward(
        self, obs: list[Tensor], next_obs: list[Tensor], mask: Tensor | None, action: Tensor, numbers: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What `_losses` gives. Noise is drawn out here, as compiled code would draw it once and for all."""
        reward, discount, weight = numbers.unbind(0)
        self.target.draw_noise(self._rng)
        if self.config.double:
            self.model.draw_noise(self._rng)
        with torch.no_grad():
            target = self._target_of(next_obs, mask, reward, discount)
        self.model.draw_noise(self._rng)
        return self._loss_of(obs, action, target, weight)

    def _losses(
        self, obs: list[Tensor], action: Tensor, target: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The weighted mean, the error of each row [N], and the mean value of what was done."""
        scores = chosen(self.model.scores(obs), action)
        if self.config.num_atoms:
            loss, q = distribution_loss(scores, target), self.model.means(scores.detach())
            error = loss.detach()
        else:
            loss, q = td_loss(scores, target, self.config.loss), scores.detach()
            error = q - target
        return torch.dot(loss, weight) / len(loss), error, q.mean()

    def _targets(self, next_obs: list[Tensor], mask: Tensor | None, reward: Tensor, discount: Tensor) -> Tensor:
        """[N], or [N, num_atoms] of a distribution."""
        model, target = self.model, self.target
        scores = target.scores(next_obs)
        action = best(model.q_values(next_obs) if self.config.double else target.means(scores), mask)
        following = chosen(scores, action)
        if self.config.num_atoms:
            return project(torch.softmax(following, -1), reward, discount, target.support)
        return td_target(reward, discount, following)

    @torch.no_grad()
    def _follow(self, times: int) -> None:
        """The target network takes its share of the online network, so many times; of what it counts, all."""
        if not times:
            return
        share = 1.0 - (1.0 - self.config.tau) ** times
        pairs = list(zip(tensors_of(self.target), tensors_of(self.model), strict=True))
        numbers = [pair for pair in pairs if pair[0].is_floating_point()]
        torch._foreach_lerp_([target for target, _ in numbers], [source for _, source in numbers], share)
        for target, source in pairs:
            if not target.is_floating_point():
                target.copy_(source)

    # ---------------------------------------------------------------------------------------------------- state

    def policy(self, box: ParamMailbox[Published] | None, *, deterministic: bool, threads: int) -> QPolicy:
        """Acts with a copy of the model, which follows `box`; without one, with the exploration of the end."""
        epsilon = self.exploration.at_the_end if box is None else self.exploration.epsilon
        return QPolicy(
            self.model,
            self.config.seed,
            None if deterministic else epsilon,
            box,
            keeps_q=self.config.actor_priorities,
            version=-1,
            threads=threads,
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Copies on the host of everything that an update reads or writes but the replay, and the rest as JSON."""
        tensors = on_host("model/", self.model.state_dict()) | on_host("target/", self.target.state_dict())
        tensors |= {f"optimiser/{name}": tensor for name, tensor in self.optimiser.state().items()}
        rest = {
            "parameters": self.optimiser.names,
            "draws": self._rng.bit_generator.state,
            "steps": self.steps,
            "num_updates": self.num_updates,
            "credit": self._credit,
        }
        return tensors, rest

    def load(self, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
        """What `state` gave. Raises LookupError, ValueError or RuntimeError if it is another model's."""
        for prefix, module in (("model/", self.model), ("target/", self.target)):
            module.load_state_dict(under(prefix, tensors))
        self.optimiser.load(under("optimiser/", tensors), rest["parameters"])
        self._rng.bit_generator.state = rest["draws"]
        self.steps, self.num_updates, self._credit = rest["steps"], rest["num_updates"], rest["credit"]


def _check_buffer(spec: LaneSpec, config: DQNConfig) -> None:
    """An unroll of episodes that are truncated at once has two whole stacks a row, beside the stacks before its first
    row and after its last one; and a window is drawn with the frames that its first stack looks back at."""
    depth, steps = spec.stack_depth, config.num_steps
    least = config.num_envs * max(depth * (2 * steps + 2), steps + config.n_step + depth)
    if config.buffer_size < least:
        raise ConfigError(
            f"buffer_size is {config.buffer_size}: at least {least}, for n_step {config.n_step} and stacks of "
            f"{depth} frames, which take more room where episodes are short"
        )


def replay_config(config: DQNConfig) -> ReplayConfig:
    return ReplayConfig(
        capacity=config.buffer_size,
        num_slots=config.num_envs,
        n_step=config.n_step,
        gamma=config.gamma,
        prioritised=config.prioritized,
        alpha=config.alpha,
    )
