"""`QPolicy`: acts by the values of a `QNetwork`, with the exploration of each row's key.

What is stored with an action is log μ of the ε-mixture, the largest value that is allowed, and, where the replay wants
it, the action's own value: replay priorities need no forward of the learner's.

Invariants: what a row does follows from the seed, its key and the weights (test_rows_act_the_same_in_any_batch), with
noisy layers also from who else acts with it, as one forward has one noise; deterministic, it is the highest mean value
and nothing else (test_deterministic_is_greedy_without_noise); everything stored is of the forward that acted
(test_what_is_stored_is_of_the_forward_that_acted).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from asyncrl.keyed_noise import uniform
from asyncrl.learner.dense import DenseTorso, Layer, fits
from asyncrl.learner.exploration import NUM_NOISE, choose, legal
from asyncrl.learner.publishing import Published
from asyncrl.learner.q_network import QNetwork
from asyncrl.learner.torch_policy import ModelPolicy
from asyncrl.learner.torsos import MLPTorso
from asyncrl.params import ParamMailbox
from asyncrl.policy import Acted
from asyncrl.wire.tensors import Array


class QPolicy(ModelPolicy):
    """`epsilon`: f8 [N] for keys u8 [N]; None for the best action, without noise. `keeps_q`: store the value of what
    was done."""

    _model: QNetwork

    def __init__(
        self,
        model: QNetwork,
        seed: int,
        epsilon: Callable[[Array], Array] | None,
        box: ParamMailbox[Published] | None = None,
        *,
        keeps_q: bool = False,
        version: int = 0,
        threads: int = 0,
    ) -> None:
        super().__init__(model, box, device=None, version=version, threads=threads)
        self._q_values = torch.compile(self._model.q_values) if model.config.compile else self._model.q_values
        self._dense = dense_values(self._model)
        self._node = model.actions
        self._seed = seed
        self._epsilon = epsilon
        self._keeps_q = keeps_q
        self._model.noise.set_noise(None)  # the copy came with that of the learner

    def _choose(
        self, obs: Sequence[Array], mask: Array | None, first: Array, carry: Sequence[Array], keys: Array
    ) -> Acted:
        if self._epsilon is not None and self._model.noise.num_noise:
            self._model.draw_noise(np.random.default_rng((self._seed, int(keys[0]))))
        if self._dense is None:
            (q,) = self._staging.download([self._q_values(self._staging.upload("obs", obs))])
        else:
            q = self._dense(obs)
        if mask is not None:
            mask = legal(mask)
            q = np.where(mask, q, -np.inf)
        if self._epsilon is None:
            choice = q.argmax(axis=1)
            log_prob = np.zeros(len(q), np.float32)
        else:
            noise = uniform(self._seed, keys, NUM_NOISE)
            choice, probability = choose(q, mask, self._epsilon(keys), noise)
            log_prob = np.log(probability).astype(np.float32)
        action = (choice + self._node.start).astype(self._node.dtype, copy=False)
        kept = [q[np.arange(len(q)), choice]] if self._keeps_q else []
        return Acted([action.reshape(-1, *self._node.shape)], log_prob, q.max(axis=1), self.version, kept=kept)


def dense_values(model: QNetwork) -> Callable[[Sequence[Array]], Array] | None:
    """Values [N, A] in NumPy, of a small dense network that has nothing on its torso but a layer; None for others."""
    shape, torso = model.shape, model.torso
    if not (isinstance(torso, MLPTorso) and fits(model)) or shape.dueling or shape.num_atoms or model.noise.num_noise:
        return None
    features, layer = DenseTorso(torso), Layer(model.advantage)
    return lambda obs: layer(features(obs)[0])
