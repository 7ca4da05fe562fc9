"""`DenseTorso`: dense layers for few rows, in NumPy, over the memory of a model's own tensors.

An operation of torch costs several times the arithmetic that a small network asks of it, and there are a dozen to a
forward. Measured with two pairs of layers of 64, on one core: forward and draw of 4 rows 84 µs in torch, 33 here; of
256 rows 165 and 121.

Invariants: features are those of the torso (test_features_are_those_of_the_torso); what is written into the model's
tensors counts from the next forward on (test_new_weights_count_at_once); observations are not written into
(test_observations_are_left_alone).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from asyncrl.learner.machine import SMALL_FLOPS
from asyncrl.learner.model import Model
from asyncrl.learner.model_config import Activation
from asyncrl.learner.networks import MLP
from asyncrl.learner.normalisers import ObsNormaliser
from asyncrl.learner.torsos import MLPTorso
from asyncrl.wire.tensors import Array

# Multiplications up to which OpenBLAS keeps a product to the thread that asks for it: how many helpers it has is said
# when a process begins, and they would be in the way of lanes and learner. Larger ones are torch's.
ONE_THREAD: Final = 1 << 18


class Layer:
    """x Wᵀ + b, in the memory of a layer of torch that wants no gradient."""

    def __init__(self, layer: nn.Linear) -> None:
        self._layer = layer
        self._weight: Array = layer.weight.detach().numpy().T  # f4 [inputs, outputs]
        self._bias: Array = layer.bias.detach().numpy()  # f4 [outputs]
        self.most_rows = ONE_THREAD // max(self._weight.size, 1)

    def __call__(self, x: Array) -> Array:
        """[N, inputs] -> [N, outputs], the caller's own."""
        if len(x) > self.most_rows:
            return self._by_torch(x)
        found: Array = x @ self._weight
        found += self._bias
        return found

    def _by_torch(self, x: Array) -> Array:
        found: Array = F.linear(torch.from_numpy(x), self._layer.weight.detach(), self._layer.bias.detach()).numpy()
        return found


class DenseTorso:
    """Of a model that `fits`; `normaliser` comes before it."""

    def __init__(self, torso: MLPTorso, normaliser: ObsNormaliser | None = None) -> None:
        self._torso, self._normaliser = torso, normaliser
        self._policy = _Stack(torso.policy)
        self._value = None if torso.value is None else _Stack(torso.value)

    def __call__(self, obs: Sequence[Array]) -> tuple[Array, Array]:
        """Leaves [N, *shape] -> features f4 [N, F] for the policy and for the value; not to be written into."""
        with np.errstate(over="ignore", invalid="ignore"):  # as torch, which says nothing either
            x = self._encoded(obs)
            policy = self._policy(x)
            return policy, policy if self._value is None else self._value(x)

    def _encoded(self, obs: Sequence[Array]) -> Array:
        if len(obs) == 1 and obs[0].dtype == np.float32 and self._normaliser is None:
            return obs[0].reshape(len(obs[0]), -1)
        with torch.inference_mode():
            leaves = [torch.from_numpy(leaf) for leaf in obs]
            encoded: Array = self._torso.encoder(self._normaliser(leaves) if self._normaliser else leaves).numpy()
        return encoded


def fits(model: Model) -> bool:
    """Whether `DenseTorso` computes the torso of this model, one that a single thread is enough for."""
    config = model.config
    return (
        isinstance(model.torso, MLPTorso)
        and model.device.type == "cpu"
        and not (config.bf16 or config.compile or config.gru_size)
        and 2 * sum(parameter.numel() for parameter in model.parameters()) < SMALL_FLOPS
    )


class _Stack:
    """[N, inputs] -> [N, outputs] through all layers of an MLP."""

    def __init__(self, mlp: MLP) -> None:
        self._layers = [Layer(layer) for layer in cast(Iterable[nn.Linear], mlp.layers)]
        self._activate = _ACTIVATIONS[mlp.activation]

    def __call__(self, x: Array) -> Array:
        activate = self._activate
        for layer in self._layers:
            x = layer(x)
            activate(x)
        return x


def _tanh(x: Array) -> None:
    np.tanh(x, out=x)


def _relu(x: Array) -> None:
    np.maximum(x, 0.0, out=x)


def _elu(x: Array) -> None:
    np.expm1(x, out=x, where=x < 0.0)


_ACTIVATIONS: Final[dict[Activation, Callable[[Array], None]]] = {"tanh": _tanh, "relu": _relu, "elu": _elu}
