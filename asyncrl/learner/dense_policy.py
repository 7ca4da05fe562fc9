"""`DensePolicy`: acts with a small dense network, and a choice among the actions of one Discrete space, in NumPy.

It does what `TorchPolicy` does, in a third of the time (`dense` says why): same weights, keys and seed give the same
actions (test_it_acts_as_torch_does), of masks what is allowed (test_masks_are_obeyed); a new version is taken between
forwards, of which each is of one (test_a_new_version_is_taken_between_forwards).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrl.keyed_noise import uniform
from asyncrl.learner.dense import DenseTorso, Layer, fits
from asyncrl.learner.exploration import legal
from asyncrl.learner.heads import CategoricalHead
from asyncrl.learner.model import ActorCritic
from asyncrl.learner.publishing import Published
from asyncrl.learner.torch_policy import ModelPolicy
from asyncrl.learner.torsos import MLPTorso
from asyncrl.params import ParamMailbox
from asyncrl.policy import Acted
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.tensors import Array


class DensePolicy(ModelPolicy):
    """Arguments are those of `TorchPolicy`; for models that `acts_densely`."""

    _model: ActorCritic

    def __init__(
        self,
        model: ActorCritic,
        seed: int,
        box: ParamMailbox[Published] | None = None,
        *,
        deterministic: bool = False,
        version: int = 0,
        threads: int = 0,
    ) -> None:
        super().__init__(model, box, device=None, version=version, threads=threads)
        copied, head = self._model, self._model.head
        assert isinstance(copied.torso, MLPTorso)
        assert isinstance(head, CategoricalHead)
        self._features = DenseTorso(copied.torso, copied.normaliser)
        self._logits, self._value = Layer(head.out), Layer(copied.value_out)
        self._node = head.node
        self._deterministic = deterministic
        self._seed = seed

    def act(
        self, obs: Sequence[Array], mask: Array | None, first: Array, carry: Sequence[Array], keys: Array | None
    ) -> Acted:
        # Without the modes of torch, which cost as much as a layer: only a new version, or many rows, need it at all.
        self._settle()
        self._refresh()
        return self._choose(obs, mask, first, carry, self._own_keys(len(first)) if keys is None else keys)

    def _choose(
        self, obs: Sequence[Array], mask: Array | None, first: Array, carry: Sequence[Array], keys: Array
    ) -> Acted:
        for_policy, for_value = self._features(obs)
        logits = self._logits(for_policy)
        choice, log_prob = self._drawn(logits, mask, keys)
        action = (choice + self._node.start).astype(self._node.dtype, copy=False)
        return Acted([action], log_prob, self._value(for_value)[:, 0], self.version)

    def _drawn(self, logits: Array, mask: Array | None, keys: Array) -> tuple[Array, Array]:
        """Choices i8 [N] from 0, by inverted CDF as a head draws them, and their log-probabilities f4 [N]; `logits`
        [N, A] are used up."""
        if mask is not None:
            logits[~legal(mask)] = -np.inf
        logits -= logits.max(axis=1, keepdims=True)
        cdf = np.exp(logits).cumsum(axis=1)
        total = cdf[:, -1:]
        if self._deterministic:
            choice = logits.argmax(axis=1)
        else:
            # What is masked adds exactly 0 to the sum, and no uniform number is 0: `<` never stops there.
            choice = (cdf < uniform(self._seed, keys, 1).astype(np.float32) * total).sum(axis=1)
        log_prob: Array = logits[np.arange(len(logits)), choice] - np.log(total[:, 0])
        return choice, log_prob


def acts_densely(model: ActorCritic) -> bool:
    """Whether `DensePolicy` can act with this model."""
    head = model.head
    return isinstance(head, CategoricalHead) and head.node.kind == pb.DISCRETE and fits(model)
