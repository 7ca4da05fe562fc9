"""What a search wants of a run's network: logits and values, with actions drawn from them where those are played.

Invariant: a network whose actions cannot be listed, or that remembers, is refused by name
(test_networks_that_cannot_judge_are_refused).
"""

from __future__ import annotations

from asyncrl.errors import ConfigError
from asyncrl.learner.actor_critic import ActorCriticLearner
from asyncrl.learner.algorithms import RunLearner
from asyncrl.learner.heads import CategoricalHead
from asyncrl.learner.publishing import Published
from asyncrl.learner.torch_policy import TorchPolicy
from asyncrl.params import ParamMailbox


def prior_policy(learner: RunLearner, box: ParamMailbox[Published] | None, *, threads: int) -> TorchPolicy:
    """Acts as in training, and keeps the logits, f4 [N, A]. It follows `box` where there is one.

    ConfigError for a learner whose network a search has no use for.
    """
    if not isinstance(learner, ActorCriticLearner):
        raise ConfigError(f"a search wants a policy and a value, and {type(learner).__name__} has action values alone")
    model = learner.model
    if not isinstance(model.head, CategoricalHead) or model.head.num_noise != 1:
        raise ConfigError("a search with a network lists the actions: it is for one Discrete action")
    if model.gru is not None:
        raise ConfigError("a search does not carry what a network remembers: train one with gru_size 0")
    seed: int = learner.config.seed
    return TorchPolicy(model, seed, box, tells_params=True, version=-1 if box is not None else 0, threads=threads)
