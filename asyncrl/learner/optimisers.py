"""Which optimiser a configuration asks for."""

from __future__ import annotations

from torch import nn

from asyncrl.config import RunConfig
from asyncrl.learner.flat_adam import FlatAdam
from asyncrl.learner.flat_optimiser import FlatOptimiser
from asyncrl.learner.flat_rmsprop import FlatRMSprop, RMSRule


def build_optimiser(module: nn.Module, config: RunConfig) -> FlatOptimiser:
    """Over all trainable parameters of the module, which become views into one vector."""
    if config.optimizer == "adam":
        return FlatAdam(module, config.adam_eps)
    rule = RMSRule(config.rms_alpha, config.rms_eps, config.rms_momentum, config.rms_centered, config.rms_style)
    return FlatRMSprop(module, rule)
