"""Dense networks against torch's own layers, and how their weights begin."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from asyncrl.learner.model_config import Activation
from asyncrl.learner.networks import MLP, linear, tanh_layer


def gram(weight: Tensor) -> Tensor:
    """The products of rows with rows, or of columns with columns if they are fewer."""
    return weight @ weight.t() if weight.shape[0] <= weight.shape[1] else weight.t() @ weight


def test_weights_begin_orthogonal_with_their_gain() -> None:
    """W Wᵀ = 2 I in hidden layers and gain² I elsewhere, biases are 0: an element's deviation is gain / √fan."""
    torch.manual_seed(1)
    net = MLP(4, (64, 64), "tanh")
    for layer in net.layers:
        assert isinstance(layer, nn.Linear)
        identity = torch.eye(min(layer.weight.shape))
        assert torch.allclose(gram(layer.weight), 2.0 * identity, atol=1e-5)
        assert not layer.bias.any()
        assert float(layer.weight.detach().std()) == pytest.approx(math.sqrt(2.0 / max(layer.weight.shape)), rel=0.1)
    for gain in (0.01, 1.0):
        out = linear(64, 3, gain)
        assert torch.allclose(gram(out.weight), gain**2 * torch.eye(3), atol=1e-6 * gain)


def test_tanh_is_tanh_and_so_is_its_slope() -> None:
    """The sum of a sigmoid that stands in for tanh is tanh to 3e-7, and its gradient that of tanh, far out too."""
    x = torch.linspace(-30.0, 30.0, 20_001).unsqueeze(1).requires_grad_()
    found = tanh_layer(x, torch.ones(1, 1), torch.zeros(1))
    exact = torch.tanh(x.detach().double())
    assert float((found.detach().double() - exact).abs().max()) < 3e-7
    (slope,) = torch.autograd.grad(found.sum(), x)
    assert float((slope.double() - (1 - exact**2)).abs().max()) < 1e-6


@pytest.mark.parametrize("compiled", [False, True])
def test_tanh_of_bfloat16_is_torchs(compiled: bool) -> None:
    """Under autocast the same bits as torch's layer, small numbers and slopes too; in one graph where it is compiled,
    and there float32 is what it was."""
    torch.manual_seed(3)
    x, bias = torch.randn(64, 8), torch.randn(16) / 100
    weight = (torch.randn(16, 8) / 100).requires_grad_()
    layer = torch.compile(tanh_layer, backend="eager", fullgraph=True) if compiled else tanh_layer
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = layer(x, weight, bias), torch.tanh(nn.functional.linear(x, weight, bias))
    assert torch.equal(found, expected)
    slopes = [torch.autograd.grad(out.float().sum(), weight)[0] for out in (found, expected)]
    torch.testing.assert_close(*slopes)
    assert torch.equal(layer(x, weight, bias), tanh_layer(x, weight, bias))


@pytest.mark.parametrize(
    ("activation", "layer"), [("tanh", nn.Tanh), ("relu", nn.ReLU), ("elu", nn.ELU)], ids=["tanh", "relu", "elu"]
)
def test_an_mlp_is_its_layers_one_after_the_other(activation: Activation, layer: type[nn.Module]) -> None:
    """Every layer is followed by the activation, the last one too."""
    torch.manual_seed(2)
    net = MLP(5, (16, 8), activation)
    assert net.num_features == 8
    twin = nn.Sequential(nn.Linear(5, 16), layer(), nn.Linear(16, 8), layer())
    with torch.no_grad():
        for source, target in zip(net.parameters(), twin.parameters(), strict=True):
            source.normal_()  # biases too
            target.copy_(source)
    x = torch.randn(32, 5)
    assert torch.allclose(net(x), twin(x), atol=1e-6)


def test_no_layers_pass_the_input_on() -> None:
    """`hidden_sizes = ()` is a linear policy."""
    net = MLP(5, (), "tanh")
    x = torch.randn(3, 5)
    assert net.num_features == 5
    assert net(x) is x
