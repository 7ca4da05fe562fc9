"""Noisy layers against the formula, and what shares their noise."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.learner.convolutions import NatureCNN
from asyncrl.learner.networks import MLP
from asyncrl.learner.noisy import NoisyLayers, NoisyLinear, make_noisy

X = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32))
Z = torch.from_numpy(np.random.default_rng(1).normal(size=5).astype(np.float32))


def layer(sigma0: float = 0.5) -> NoisyLinear:
    torch.manual_seed(1)
    return NoisyLinear(3, 2, sigma0)


def noisy_output(made: NoisyLinear, z: Tensor | None) -> Tensor:
    NoisyLayers(made).set_noise(z)
    found: Tensor = made(X)
    return found


def test_a_layer_is_what_the_formula_says() -> None:
    """Entry by entry: μ + σ f(z_out) f(z_in), with f(x) = sgn(x) √|x|, and μ + σ f(z_out) for the bias."""
    made = layer()
    found = noisy_output(made, Z)
    f = [float(np.sign(z) * np.sqrt(abs(z))) for z in Z.tolist()]
    f_in, f_out = f[:3], f[3:]
    with torch.no_grad():
        for n in range(len(X)):
            for o in range(2):
                total = float(made.bias_mu[o]) + float(made.bias_sigma[o]) * f_out[o]
                for i in range(3):
                    weight = float(made.weight_mu[o, i]) + float(made.weight_sigma[o, i]) * f_out[o] * f_in[i]
                    total += weight * float(X[n, i])
                assert abs(float(found[n, o]) - total) < 1e-5


def test_layers_begin_as_published() -> None:
    """μ uniform within 1/√inputs, σ everywhere σ₀/√inputs."""
    torch.manual_seed(2)
    made = NoisyLinear(400, 50, 0.5)
    bound = 400**-0.5
    assert 0.95 * bound < float(made.weight_mu.detach().abs().max()) <= bound
    assert abs(float(made.weight_mu.detach().std()) - bound / 3**0.5) < 0.02 * bound
    torch.testing.assert_close(made.weight_sigma.detach(), torch.full((50, 400), 0.5 * bound))
    torch.testing.assert_close(made.bias_sigma.detach(), torch.full((50,), 0.5 * bound))


def test_without_noise_a_layer_is_its_mean() -> None:
    """Also after there was some."""
    made = layer()
    noisy = noisy_output(made, Z)
    plain = noisy_output(made, None)
    torch.testing.assert_close(plain, X @ made.weight_mu.T + made.bias_mu)
    assert not torch.allclose(noisy, plain)


def test_the_same_noise_gives_the_same_and_another_does_not() -> None:
    """Two forwards under one noise are equal; after the next draw they differ."""
    made = layer()
    first = noisy_output(made, Z)
    assert torch.equal(first, made(X))
    assert not torch.equal(noisy_output(made, -Z), first)


def test_all_rows_of_a_forward_have_the_same_noise() -> None:
    """Equal rows have equal outputs."""
    made = layer()
    NoisyLayers(made).set_noise(Z)
    found = made(X[:1].expand(4, 3))
    assert bool((found == found[0]).all())


def test_noise_is_not_in_the_state() -> None:
    """What is published, copied into another network and kept are parameters alone."""
    made = layer()
    NoisyLayers(made).set_noise(Z)
    assert set(made.state_dict()) == {"weight_mu", "weight_sigma", "bias_mu", "bias_sigma"}


def test_gradients_reach_the_size_of_the_noise() -> None:
    """d loss / d σ is d loss / d w times the noise, entry by entry."""
    made = layer()
    (noisy_output(made, Z) ** 2).sum().backward()  # type: ignore[no-untyped-call]
    f_of_z = Z.sign() * Z.abs().sqrt()
    assert made.weight_mu.grad is not None and made.weight_sigma.grad is not None
    expected = made.weight_mu.grad * torch.outer(f_of_z[3:], f_of_z[:3])
    torch.testing.assert_close(made.weight_sigma.grad, expected)


def test_dense_layers_become_noisy_and_convolutions_stay() -> None:
    """In a perceptron all of them, in Nature's network the last; and they go on computing what they stood for."""
    mlp, nature = MLP(3, (4, 2), "relu"), NatureCNN(1, 36, 36)
    for network, count in ((mlp, 2), (nature, 1)):
        make_noisy(network, 0.5)
        assert sum(isinstance(module, NoisyLinear) for module in network.modules()) == count
        assert not any(type(module) is nn.Linear for module in network.modules())
    layers = NoisyLayers(mlp)
    assert layers.num_noise == (3 + 4) + (4 + 2)
    plain = mlp(X)
    layers.set_noise(torch.ones(layers.num_noise))
    assert not torch.allclose(mlp(X), plain)


def test_a_copy_has_noise_of_its_own() -> None:
    """Setting that of a copied network leaves the original as it was."""
    made = nn.Sequential(layer())
    layers = NoisyLayers(made)
    twin, twin_layers = copy.deepcopy((made, layers))
    layers.set_noise(Z)
    twin_layers.set_noise(None)
    assert not torch.equal(made(X), twin(X))
