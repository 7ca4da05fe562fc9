"""Heads: what the last layer says, as distributions over the actions of a space.

A head works on parameters `[..., P]` with any leading axes, so acting `[N]` and learning `[T, B]` are the same code.
Actions are tensors per action leaf `[..., *shape]`, in the numbering of the environment (with `start`). Sampling takes
uniform numbers from outside, one column per `num_noise`.

Masks are b1 `[..., mask_size]`, True for what is allowed. A masked action has probability 0: it is never drawn
(test_what_is_masked_is_never_drawn), the entropy is that over the allowed ones, and no gradient is NaN
(test_masks_leave_no_nan_in_gradients). A row (of MULTI_DISCRETE: a place of it) that allows nothing is taken to allow
everything (test_a_mask_that_allows_nothing_allows_everything): rows without a transition have void masks, and an
environment refuses an illegal action by name.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asyncrl.learner.networks import linear
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spaces import Node
from asyncrl.wire.tensors import Array

Actions = list[Tensor]


class Head(nn.Module):
    """Base of all heads. Subclasses set the numbers and fill in `draw`, `evaluate`."""

    num_params: int  # P: of the row of parameters
    num_noise: int  # uniform numbers that a draw takes per row
    mask_size: int  # 0: no mask applies
    noise_period: int = 1  # steps for which a row keeps its noise

    def project(self, features: Tensor) -> Tensor:
        """Features [N, F] -> parameters [N, P]."""
        raise NotImplementedError

    def draw(self, params: Tensor, mask: Tensor | None, noise: Tensor | None) -> tuple[Actions, Tensor]:
        """Actions and their log-probabilities [...]; `noise` [..., num_noise] in (0, 1), None for the mode."""
        raise NotImplementedError

    def evaluate(self, params: Tensor, mask: Tensor | None, action: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy, [...] each: what an update needs, in one go."""
        raise NotImplementedError

    def sample(self, params: Tensor, mask: Tensor | None, noise: Tensor) -> Actions:
        return self.draw(params, mask, noise)[0]

    def mode(self, params: Tensor, mask: Tensor | None) -> Actions:
        return self.draw(params, mask, None)[0]

    def log_prob(self, params: Tensor, mask: Tensor | None, action: Sequence[Tensor]) -> Tensor:
        """[...]"""
        return self.evaluate(params, mask, action)[0]

    def entropy(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """[...]"""
        raise NotImplementedError

    def stored(self, action: Sequence[Array]) -> list[Array]:
        """Drawn leaves in the dtypes that unrolls keep."""
        raise NotImplementedError

    def env_action(self, action: Sequence[Array]) -> list[Array]:
        """Stored leaves as they are sent: within bounds, in dtypes of the wire; [] if as they are stored."""
        return []


class CategoricalHead(Head):
    """DISCRETE and MULTI_DISCRETE: one choice per place, all independent. One uniform number a place, inverted CDF."""

    def __init__(self, node: Node, num_features: int) -> None:
        super().__init__()
        self.node = node
        if node.kind == pb.DISCRETE:
            counts, starts = np.array([node.n]), np.array([node.start])
        else:
            assert node.nvec is not None
            counts = node.nvec.reshape(-1)
            starts = np.zeros_like(counts) if node.nvec_start is None else node.nvec_start.reshape(-1)
        self.num_params = self.mask_size = int(counts.sum())
        self.num_noise = len(counts)
        self._shape, self._dtype = node.shape, node.dtype
        self._places, self._width = len(counts), int(counts.max())
        self._padding = _padding(counts)
        self._starts = torch.from_numpy(starts.astype(np.int64)) if starts.any() else None
        self.out = linear(num_features, self.num_params, 0.01)

    def project(self, features: Tensor) -> Tensor:
        return F.linear(features, self.out.weight, self.out.bias)

    def draw(self, params: Tensor, mask: Tensor | None, noise: Tensor | None) -> tuple[Actions, Tensor]:
        log_p = self._log_p(params, mask)  # [..., D, n]
        if noise is None:
            choice = log_p.argmax(-1, keepdim=True)
        else:
            # What is masked adds exactly 0 to the sum, and no uniform number is 0: `<` never stops there.
            cdf = log_p.exp().cumsum(-1)
            point = noise.to(cdf.dtype).unsqueeze(-1) * cdf[..., -1:]
            choice = (cdf < point).sum(-1, keepdim=True)
        chosen = log_p.gather(-1, choice)
        return [self._named(choice.squeeze(-1))], _over_places(chosen.squeeze(-1))

    def evaluate(self, params: Tensor, mask: Tensor | None, action: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        log_p = self._log_p(params, mask)
        choice = self._index(action[0], params.shape[:-1])
        chosen = log_p.gather(-1, choice.unsqueeze(-1)).squeeze(-1)
        return _over_places(chosen), _entropy(log_p)

    def entropy(self, params: Tensor, mask: Tensor | None) -> Tensor:
        return _entropy(self._log_p(params, mask))

    def stored(self, action: Sequence[Array]) -> list[Array]:
        return [action[0].astype(self._dtype, copy=False)]

    def _log_p(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """[..., P] -> [..., D, n], with the lowest number there is where nothing may be chosen."""
        lowest = torch.finfo(params.dtype).min
        if self._padding is None:
            logits = params.reshape(*params.shape[:-1], self._places, self._width)
            allowed = None if mask is None else mask.reshape(logits.shape)
        else:
            self._padding = self._padding.to(params.device)
            logits = F.pad(params, (0, 1), value=lowest)[..., self._padding]
            allowed = None if mask is None else F.pad(mask, (0, 1))[..., self._padding]
        if allowed is not None:
            nothing = ~allowed.any(-1, keepdim=True)
            logits = logits.masked_fill(~(allowed | nothing), lowest)
        return torch.log_softmax(logits, -1)

    def _named(self, choice: Tensor) -> Tensor:
        """[..., D] from 0 -> [..., *shape] in the environment's numbering."""
        if self._starts is not None:
            self._starts = self._starts.to(choice.device)
            choice = choice + self._starts
        return choice.reshape(*choice.shape[:-1], *self._shape)

    def _index(self, action: Tensor, lead: torch.Size) -> Tensor:
        choice = action.reshape(*lead, self._places).long()
        if self._starts is not None:
            self._starts = self._starts.to(choice.device)
            choice = choice - self._starts
        return choice


class BernoulliHead(Head):
    """MULTI_BINARY: one coin per place. One uniform number a place."""

    def __init__(self, node: Node, num_features: int) -> None:
        super().__init__()
        self._shape, self._dtype = node.shape, node.dtype
        self.num_params = self.num_noise = int(np.prod(node.shape, dtype=np.int64))
        self.mask_size = 0
        self.out = linear(num_features, self.num_params, 0.01)

    def project(self, features: Tensor) -> Tensor:
        return F.linear(features, self.out.weight, self.out.bias)

    def draw(self, params: Tensor, mask: Tensor | None, noise: Tensor | None) -> tuple[Actions, Tensor]:
        ones = params > 0 if noise is None else noise < params.sigmoid()
        log_prob = self._log_prob(params, ones)
        return [ones.reshape(*params.shape[:-1], *self._shape)], log_prob

    def evaluate(self, params: Tensor, mask: Tensor | None, action: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return self._log_prob(params, action[0].reshape(params.shape).bool()), self.entropy(params, mask)

    def entropy(self, params: Tensor, mask: Tensor | None) -> Tensor:
        return (F.softplus(params) - params * params.sigmoid()).sum(-1)

    def stored(self, action: Sequence[Array]) -> list[Array]:
        return [action[0].astype(self._dtype)]

    def _log_prob(self, params: Tensor, ones: Tensor) -> Tensor:
        return -F.softplus(torch.where(ones, -params, params)).sum(-1)


def _padding(counts: Array) -> Tensor | None:
    """i8 [D, max n]: columns of [..., P + 1] (the last is void) for each place; None where all have as many values."""
    if (counts == counts[0]).all():
        return None
    width, total = int(counts.max()), int(counts.sum())
    columns = np.full((len(counts), width), total, np.int64)
    start = 0
    for place, count in enumerate(counts):
        columns[place, :count] = np.arange(start, start + int(count))
        start += int(count)
    return torch.from_numpy(columns)


def _over_places(x: Tensor) -> Tensor:
    """[..., D] -> [...]"""
    return x.squeeze(-1) if x.shape[-1] == 1 else x.sum(-1)


def _entropy(log_p: Tensor) -> Tensor:
    """[..., D, n] -> [...]; 0 · log 0 is 0, as log 0 is finite here."""
    return -(log_p.exp() * log_p).sum((-2, -1))
