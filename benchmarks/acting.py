"""The policies that the measurements act with: random actions, a small MLP, NatureCNN.

Both torch policies do what acting needs and no more: a sampled action, its log-probability, a value. The ceilings and
asyncrl itself run the same object, so that a ratio of the two does not depend on how clever it is.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from asyncrl.policy import Acted, Policy
from asyncrl.wire.tensors import Array

CARTPOLE_OBS, CARTPOLE_ACTIONS = 4, 2
HIDDEN = 64
FRAMES = 4


class RandomPolicy:
    """Uniform actions from a pool drawn beforehand: acting costs next to nothing, as it does for the peers."""

    POOL = 64

    def __init__(self, draw: Callable[[np.random.Generator, int], list[Array]], seed: int = 0) -> None:
        self._draw = draw
        self._rng = np.random.default_rng(seed)
        self._pools: dict[int, list[list[Array]]] = {}
        self._turn = 0

    def actions(self, num_rows: int) -> list[Array]:
        """Action leaves [num_rows, *shape]."""
        pool = self._pools.get(num_rows)
        if pool is None:
            pool = [self._draw(self._rng, num_rows) for _ in range(self.POOL)]
            self._pools[num_rows] = pool
        self._turn += 1
        return pool[self._turn % self.POOL]


def torch_policy(name: str, num_actions: int, obs_size: int, action_dtype: np.dtype[Any], *, bf16: bool) -> Policy:
    """`mlp` or `cnn`, with one intra-op thread: the loop, the server and the lanes need the other cores."""
    import torch

    warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # the ceilings act on received bytes
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if name == "mlp":
        return _Mlp(obs_size, num_actions, action_dtype)
    return _Cnn(num_actions, action_dtype, bf16)


class _Sampling:
    """Draws from the softmax of logits [N, A] and reports the log-probability of what was drawn."""

    def __init__(self, action_dtype: np.dtype[Any]) -> None:
        import torch

        self._torch = torch
        self._action_dtype = action_dtype

    def acted(self, logits: Any, value: Any) -> Acted:
        """`logits` [N, A] and `value` [N, 1] in f4."""
        torch = self._torch
        noise = torch.empty_like(logits).exponential_()
        log_probs = torch.log_softmax(logits, 1)
        # argmax(log p − log noise) is a draw from p: the exponential race.
        action = (log_probs - noise.log_()).argmax(1, keepdim=True)
        log_prob = log_probs.gather(1, action).squeeze(1)
        leaf = action.squeeze(1).numpy().astype(self._action_dtype, copy=False)
        return Acted([leaf], log_prob.numpy(), value.squeeze(1).numpy(), 0)


class _Mlp(_Sampling):
    """Separate actor and critic, two hidden layers of 64 tanh units each."""

    def __init__(self, obs_size: int, num_actions: int, action_dtype: np.dtype[Any]) -> None:
        super().__init__(action_dtype)
        self._actor = self._layers(obs_size, num_actions)
        self._critic = self._layers(obs_size, 1)

    def _layers(self, inputs: int, outputs: int) -> list[tuple[Any, Any]]:
        torch = self._torch
        sizes = (inputs, HIDDEN, HIDDEN, outputs)
        layers = []
        for fan_in, fan_out in pairwise(sizes):
            weight = torch.nn.init.orthogonal_(torch.empty(fan_out, fan_in), math.sqrt(2.0))
            layers.append((weight, torch.zeros(fan_out)))
        return layers

    def _forward(self, x: Any, layers: list[tuple[Any, Any]]) -> Any:
        linear = self._torch.nn.functional.linear
        first, second, last = layers
        x = linear(x, *first).tanh_()
        x = linear(x, *second).tanh_()
        return linear(x, *last)

    def act(
        self,
        obs: Sequence[Array],
        mask: Array | None,
        first: Array,
        carry: Sequence[Array],
        keys: Array | None = None,
    ) -> Acted:
        torch = self._torch
        with torch.inference_mode():
            x = torch.from_numpy(obs[0])
            return self.acted(self._forward(x, self._actor), self._forward(x, self._critic))


class _Cnn(_Sampling):
    """NatureCNN on u1 [N, 4, 84, 84], channels last, with one 512-unit layer under actor and critic."""

    def __init__(self, num_actions: int, action_dtype: np.dtype[Any], bf16: bool) -> None:
        super().__init__(action_dtype)
        torch = self._torch
        nn = torch.nn
        body = nn.Sequential(
            nn.Conv2d(FRAMES, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 512),
            nn.ReLU(),
        )
        self._body = body.to(memory_format=torch.channels_last).eval()
        self._heads = nn.Linear(512, num_actions + 1).eval()
        self._num_actions = num_actions
        self._bf16 = bf16

    def act(
        self,
        obs: Sequence[Array],
        mask: Array | None,
        first: Array,
        carry: Sequence[Array],
        keys: Array | None = None,
    ) -> Acted:
        torch = self._torch
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=self._bf16):
            x = torch.from_numpy(obs[0]).to(torch.float32, memory_format=torch.channels_last).mul_(1 / 255)
            heads = self._heads(self._body(x)).float()
            return self.acted(heads[:, : self._num_actions], heads[:, self._num_actions :])
