"""`ModelConfig` against the configuration of a run."""

from __future__ import annotations

import dataclasses
from typing import Any

from asyncrl.config import PPOConfig
from asyncrl.learner.model_config import ModelConfig


def test_every_field_is_taken_from_the_run() -> None:
    """A model's field is the run's field of that name; none is forgotten."""
    for field in dataclasses.fields(ModelConfig):
        default = getattr(PPOConfig(), field.name)
        other: Any = {bool: not default, int: 77, float: 0.77, str: "impala", tuple: (7, 7)}[type(default)]
        if field.name == "activation":
            other = "elu"
        changed: dict[str, Any] = {field.name: other}
        run = dataclasses.replace(PPOConfig(), **changed)
        assert getattr(ModelConfig.of(run), field.name) == other
