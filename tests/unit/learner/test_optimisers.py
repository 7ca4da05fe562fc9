"""The optimiser that a configuration asks for, with the numbers that it says."""

from __future__ import annotations

from asyncrl.config import A2CConfig, PPOConfig
from asyncrl.learner.flat_adam import FlatAdam
from asyncrl.learner.flat_rmsprop import FlatRMSprop, RMSRule
from asyncrl.learner.optimisers import build_optimiser
from tests.unit.learner.small_nets import net


def test_adam_is_the_default() -> None:
    """With the epsilon of the configuration."""
    found = build_optimiser(net(), PPOConfig(adam_eps=3e-4))
    assert isinstance(found, FlatAdam)
    assert found.eps == 3e-4


def test_rmsprop_has_every_number() -> None:
    """Each setting goes where it belongs."""
    config = A2CConfig(
        optimizer="rmsprop", rms_alpha=0.95, rms_eps=0.1, rms_momentum=0.5, rms_centered=True, rms_style="torch"
    )
    found = build_optimiser(net(), config)
    assert isinstance(found, FlatRMSprop)
    assert found.rule == RMSRule(alpha=0.95, eps=0.1, momentum=0.5, centered=True, style="torch")
