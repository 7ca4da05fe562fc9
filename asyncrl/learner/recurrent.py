"""A gated recurrent unit whose carry is cleared where an episode begins.

Invariants: it computes what torch's GRU does (test_it_is_torchs_gru); a row with `first` sees no carry at all, not even
one that is not finite (test_an_episode_begins_without_a_carry); a sequence is the steps one after the other
(test_a_sequence_is_its_steps), and gradients reach back through the carry to the last `first`
(test_gradients_stop_where_an_episode_begins).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GRU(nn.Module):
    """Features [N, inputs] and carry [N, size] -> carry [N, size], which is the output too."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.weight_ih = nn.Parameter(_gates(inputs, size))
        self.weight_hh = nn.Parameter(_gates(size, size))
        self.bias_ih = nn.Parameter(torch.zeros(3 * size))
        self.bias_hh = nn.Parameter(torch.zeros(3 * size))

    def step(self, x: Tensor, first: Tensor, carry: Tensor) -> Tensor:
        """`first`: b1 [N]."""
        return self._cell(F.linear(x, self.weight_ih, self.bias_ih), first, carry)

    def sequence(self, x: Tensor, first: Tensor, carry: Tensor) -> Tensor:
        """x [T, N, inputs], first b1 [T, N], carry [N, size] before row 0 -> [T, N, size], the carry after each row."""
        gates = F.linear(x, self.weight_ih, self.bias_ih)
        after: list[Tensor] = []
        for gates_t, first_t in zip(gates.unbind(0), first.unbind(0), strict=True):
            carry = self._cell(gates_t, first_t, carry)
            after.append(carry)
        return torch.stack(after)

    def _cell(self, gates: Tensor, first: Tensor, carry: Tensor) -> Tensor:
        """`gates` [N, 3 size]: what the input says to reset gate, update gate and candidate."""
        carry = carry.masked_fill(first.unsqueeze(-1), 0.0)
        recurrent = F.linear(carry, self.weight_hh, self.bias_hh)
        split = 2 * self.size
        reset, keep = torch.sigmoid(gates[:, :split] + recurrent[:, :split]).chunk(2, dim=1)
        candidate = torch.tanh(torch.addcmul(gates[:, split:], reset, recurrent[:, split:]))
        return torch.lerp(candidate, carry, keep)


def _gates(inputs: int, size: int) -> Tensor:
    """[3 size, inputs], orthogonal for each gate."""
    return torch.cat([nn.init.orthogonal_(torch.empty(size, inputs)) for _ in range(3)])
