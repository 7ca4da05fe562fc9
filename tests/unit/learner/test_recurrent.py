"""The GRU against torch's own, and what an episode's beginning cuts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asyncrl.learner.recurrent import GRU

T, N, INPUTS, SIZE = 7, 3, 5, 8


def made(seed: int = 1) -> tuple[GRU, Tensor, Tensor]:
    """A unit with biases, inputs [T, N, INPUTS] and a carry [N, SIZE]."""
    torch.manual_seed(seed)
    gru = GRU(INPUTS, SIZE)
    with torch.no_grad():
        gru.bias_ih.normal_()
        gru.bias_hh.normal_()
    return gru, torch.randn(T, N, INPUTS), torch.randn(N, SIZE)


def never() -> Tensor:
    return torch.zeros(T, N, dtype=torch.bool)


def test_it_is_torchs_gru() -> None:
    """With the same weights and no beginnings it gives what `nn.GRU` gives."""
    gru, x, carry = made()
    twin = nn.GRU(INPUTS, SIZE)
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(twin, f"{name}_l0").copy_(getattr(gru, name))
    expected, _ = twin(x, carry.unsqueeze(0))
    assert torch.allclose(gru.sequence(x, never(), carry), expected, atol=1e-6)


def test_an_episode_begins_without_a_carry() -> None:
    """A row with `first` gives what a carry of zeros gives, before that row and not after it, even if it was NaN."""
    gru, x, carry = made()
    first = torch.tensor([True, False, True])
    carry[0] = torch.nan
    after = gru.step(x[0], first, carry)
    fresh = gru.step(x[0], torch.zeros(N, dtype=torch.bool), torch.zeros(N, SIZE))
    assert torch.equal(after[first], fresh[first])
    assert not torch.allclose(after[1], fresh[1])
    assert after.abs().sum() > 0  # the row itself is carried on


def test_a_sequence_is_its_steps() -> None:
    """Rows one after the other, beginnings among them, equal the sequence within 1e-6."""
    gru, x, carry = made()
    first = torch.rand(T, N) < 0.3
    sequence = gru.sequence(x, first, carry)
    for t in range(T):
        carry = gru.step(x[t], first[t], carry)
        assert torch.allclose(sequence[t], carry, atol=1e-6)


def test_gradients_stop_where_an_episode_begins() -> None:
    """The last output depends on inputs since the beginning of its episode, and on none before."""
    gru, x, carry = made()
    x.requires_grad_()
    carry.requires_grad_()
    first = never()
    first[3, 0] = True
    (by_x, by_carry) = torch.autograd.grad(gru.sequence(x, first, carry)[-1].sum(), (x, carry))
    assert not by_x[:3, 0].any()
    assert not by_carry[0].any()
    assert by_x[3:, 0].abs().sum(-1).min() > 0
    assert by_x[:, 1].abs().sum(-1).min() > 0
    assert by_carry[1].any()


def test_weights_begin_orthogonal_for_each_gate() -> None:
    """Each gate's weights are orthogonal on their own, biases are 0."""
    gru = GRU(INPUTS, SIZE)
    for gate in gru.weight_hh.detach().chunk(3):
        assert torch.allclose(gate @ gate.t(), torch.eye(SIZE), atol=1e-5)
    for gate in gru.weight_ih.detach().chunk(3):
        assert torch.allclose(gate.t() @ gate, torch.eye(INPUTS), atol=1e-5)
    assert not gru.bias_ih.any()
    assert not gru.bias_hh.any()
