"""What every flat optimiser does alike: the vector, the clip, saving and loading."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from asyncrl.learner.flat_adam import FlatAdam
from asyncrl.learner.flat_optimiser import FlatOptimiser
from asyncrl.learner.flat_rmsprop import FlatRMSprop, RMSRule
from tests.unit.learner.small_nets import loss_of, net

Make = Callable[[nn.Module], FlatOptimiser]


def adam(model: nn.Module) -> FlatOptimiser:
    return FlatAdam(model, 1e-5)


def rmsprop(model: nn.Module) -> FlatOptimiser:
    return FlatRMSprop(model, RMSRule(momentum=0.9, centered=True))


EACH = pytest.mark.parametrize("make", [adam, rmsprop])


@EACH
def test_the_clipped_gradient_has_the_norm_asked_for(make: Make) -> None:
    """The norm is that of all parameters together, and what the rule gets is no longer than the limit."""
    model = net()
    optimiser = make(model)
    seen: list[float] = []

    def watched(gradient: Tensor, learning_rate: float) -> None:
        seen.append(float(gradient.norm()))

    optimiser._move = watched  # type: ignore[method-assign]
    gradient = optimiser.gradient(loss_of(model, 0, scale=100.0))
    norm = float(gradient.norm())
    assert norm > 0.5
    for limit in (2 * norm, 0.0, 0.5):
        optimiser.step(gradient, norm, 1e-2, limit)
    assert seen == pytest.approx([norm, norm, 0.5], rel=1e-4)


@EACH
def test_the_parameters_are_the_vector(make: Make) -> None:
    """Writing into a parameter writes into the vector, and a state dict that is loaded is trained on."""
    model = net()
    optimiser = make(model)
    model.load_state_dict(net(1).state_dict())
    expected = torch.cat([p.detach().reshape(-1) for p in net(1).parameters()])
    torch.testing.assert_close(optimiser.flat, expected)


@EACH
def test_a_saved_optimiser_goes_on_bit_for_bit(make: Make) -> None:
    """Ten steps, or five, a save, a load into another, and five: the same bits."""
    models = [net(), net()]
    optimisers = [make(model) for model in models]

    def run(which: int, steps: range) -> None:
        for step in steps:
            gradient = optimisers[which].gradient(loss_of(models[which], step))
            optimisers[which].step(gradient, float(gradient.norm()), 1e-2, 0.5)

    run(0, range(5))
    models[1].load_state_dict(models[0].state_dict())
    optimisers[1].load(optimisers[0].state(), optimisers[0].names)
    run(0, range(5, 10))
    run(1, range(5, 10))
    assert torch.equal(optimisers[0].flat, optimisers[1].flat)


def test_the_state_of_another_model_is_refused() -> None:
    """Names in another order, another number of parameters, or another kind of optimiser are a ValueError."""
    optimiser = adam(net())
    with pytest.raises(ValueError, match="another model"):
        optimiser.load(optimiser.state(), optimiser.names[::-1])
    with pytest.raises(ValueError, match="another model"):
        optimiser.load(adam(nn.Linear(2, 2)).state(), optimiser.names)
    with pytest.raises(ValueError, match="another model"):
        optimiser.load(rmsprop(net()).state(), optimiser.names)
