"""A game whose infos say what changes, and nothing else."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

NUM_STEPS = 24
WORTH = 2 - (NUM_STEPS - 2) - 8  # to player 0, however it is played, short of never choosing 1


class Terse(gymnasium.Env[Any, Any]):
    """Player 0 makes two moves, player 1 all others. Each pays its mover 1, the first choice of 1 among the others 8.

    Infos name the player where it changes, and allow 0 alone there. All others are empty, or of something else.
    """

    observation_space = spaces.Box(0, NUM_STEPS, (1,), np.float64)
    action_space = spaces.Discrete(2)
    infos: ClassVar[dict[int, dict[str, Any]]] = {
        0: {"to_play": 0},
        2: {"to_play": 1, "action_mask": np.array([1, 0], np.int8)},
        NUM_STEPS - 1: {"note": 1.0},
    }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.chosen = 0, False
        return np.zeros(1), dict(self.infos[0])

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        first = action == 1 and self.time >= 2 and not self.chosen
        self.chosen |= first
        self.time += 1
        return (
            np.full(1, float(self.time)),
            9.0 if first else 1.0,
            self.time == NUM_STEPS,
            False,
            dict(self.infos.get(self.time, {})),
        )
