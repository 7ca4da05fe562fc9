"""What a search wants of a run's network: logits and values, with actions drawn from them where those are played.

Invariants: what is told are the logits that the action was drawn from (test_the_logits_are_those_of_the_action);
samples follow from the keys of their rows and are those of the policy (test_samples_are_those_of_the_policy), out of
what its masks allow (test_samples_are_allowed); a network whose actions cannot be listed, or that remembers, is refused
by name (test_networks_that_cannot_judge_are_refused).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from asyncrl.errors import ConfigError
from asyncrl.keyed_noise import uniform
from asyncrl.learner.actor_critic import ActorCriticLearner
from asyncrl.learner.algorithms import RunLearner
from asyncrl.learner.heads import CategoricalHead
from asyncrl.learner.model import Model, Outputs
from asyncrl.learner.publishing import Published
from asyncrl.learner.torch_policy import ModelPolicy, TorchPolicy
from asyncrl.params import ParamMailbox
from asyncrl.policy import Acted
from asyncrl.records import Array


class PriorPolicy(TorchPolicy):
    """Acts as in training, and keeps the logits with the actions, f4 [N, A]."""

    def _told(self, out: Outputs) -> list[Tensor]:
        return [out.params]


class ProposingPolicy(ModelPolicy):
    """Draws `num_sampled` actions for each row, as they are sent; they are kept, per action leaf [N, K, *shape]."""

    def __init__(self, model: Model, seed: int, num_sampled: int, *, threads: int) -> None:
        super().__init__(model, None, device=None, version=0, threads=threads)
        self._seed, self._num_sampled = seed, num_sampled

    def _choose(
        self, obs: Sequence[Array], mask: Array | None, first: Array, carry: Sequence[Array], keys: Array
    ) -> Acted:
        head, count, rows = self._model.head, self._num_sampled, len(first)
        started, *allowed = self._staging.upload("rows", [first] if mask is None else [first, mask])
        out = self._model.step(self._staging.upload("obs", obs), started, [])
        noise = uniform(self._seed, keys, count * head.num_noise).reshape(rows * count, head.num_noise)
        (drawn_by,) = self._staging.upload("noise", [noise])
        masks = allowed[0].repeat_interleave(count, 0) if allowed else None
        action = head.sample(out.params.repeat_interleave(count, 0), masks, drawn_by)
        value, *leaves = self._staging.download([out.value, *action])
        stored = head.stored(leaves)
        sent = head.env_action(stored) or stored
        kept = [leaf.reshape(rows, count, *leaf.shape[1:]) for leaf in sent]
        return Acted([], np.zeros(rows, np.float32), value, self.version, kept=kept)


def proposing_policy(learner: RunLearner, num_sampled: int, *, threads: int) -> ProposingPolicy:
    """For actions that cannot be listed, with the network as it is now. ConfigError as `prior_policy`."""
    checked = _checked(learner)
    return ProposingPolicy(checked.model, checked.config.seed, num_sampled, threads=threads)


def prior_policy(learner: RunLearner, box: ParamMailbox[Published] | None, *, threads: int) -> PriorPolicy:
    """With the learner's network as it is now; it follows `box` where there is one.

    ConfigError for a learner whose network a search has no use for.
    """
    checked = _checked(learner)
    model = checked.model
    if not isinstance(model.head, CategoricalHead) or model.head.num_noise != 1:
        raise ConfigError(
            "a search lists the actions of one Discrete space; of any other it takes samples, if told how many"
        )
    return PriorPolicy(model, checked.config.seed, box, version=-1 if box is not None else 0, threads=threads)


def _checked(learner: RunLearner) -> ActorCriticLearner[Any]:
    if not isinstance(learner, ActorCriticLearner):
        raise ConfigError(f"a search wants a policy and a value, and {type(learner).__name__} has action values alone")
    if learner.model.gru is not None:
        raise ConfigError("a search does not carry what a network remembers: train one with gru_size 0")
    return learner
