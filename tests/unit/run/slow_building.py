"""An environment that takes a minute to make."""

from __future__ import annotations

import time
from typing import Any

import gymnasium


def make() -> gymnasium.Env[Any, Any]:
    time.sleep(60)
    return gymnasium.make("CartPole-v1")
