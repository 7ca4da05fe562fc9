"""How a Q-learner acts: greedily, but for a share ε of random actions that each environment has for itself. No torch.

ε follows from a row's key, and so from the fleet slot and the environment steps that it stands for, never from steps of
the learner. `schedule`: a straight line over environment steps, the same for all. `ladder`: slot i of N has
0.4 ** linspace(1, 8, N)[i], or the line where that is higher.

Invariants: ε is that of the environment step, whoever has learned meanwhile (test_epsilon_at_exact_environment_steps);
each row has a coin of its own (test_every_row_has_a_coin_of_its_own); a masked action is neither greedy nor random
(test_masked_actions_are_never_taken), and where nothing is allowed everything is
(test_a_mask_that_allows_nothing_allows_everything); probabilities are those of the mixture
(test_probabilities_are_those_of_the_mixture).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from asyncrl.config import DQNConfig
from asyncrl.keyed_noise import STEP_BITS
from asyncrl.wire.tensors import Array

NUM_NOISE: Final = 2  # uniform numbers of a row: its coin, and which of the allowed actions
_STEPS: Final = np.uint64((1 << STEP_BITS) - 1)
_SLOT_SHIFT: Final = np.uint64(STEP_BITS)
_BASE, _FIRST, _LAST = 0.4, 1.0, 8.0  # of the ladder


def ladder(num_slots: int) -> Array:
    """f8 [num_slots]: ε of each environment of a fleet, from bold to nearly greedy."""
    steps: Array = _BASE ** np.linspace(_FIRST, _LAST, num_slots)
    return steps


class Exploration:
    """ε of rows, by their keys."""

    def __init__(self, config: DQNConfig) -> None:
        self._num_envs = config.num_envs
        self._start, self._end = config.start_e, config.end_e
        self._duration = config.exploration_fraction * config.total_timesteps
        self._ladder = ladder(config.num_envs) if config.exploration == "ladder" else None

    def epsilon(self, keys: Array) -> Array:
        """f8 [N] for keys u8 [N]."""
        line = self._line((keys & _STEPS) * float(self._num_envs))
        if self._ladder is None:
            return line
        slots = (keys >> _SLOT_SHIFT).astype(np.int64)
        return np.maximum(line, self._ladder[slots])

    def mean_at(self, step: int) -> float:
        """Over the fleet, at an environment step."""
        line = float(self._line(np.array([float(step)]))[0])
        return line if self._ladder is None else float(np.maximum(self._ladder, line).mean())

    def at_the_end(self, keys: Array) -> Array:
        """f8 [N]: where the line ends, whatever the row."""
        return np.full(len(keys), self._end)

    def _line(self, steps: Array) -> Array:
        """f8 [N] at environment steps f8 [N]."""
        if not self._duration:
            return np.full(len(steps), self._end)
        line: Array = self._start + (self._end - self._start) * np.minimum(steps / self._duration, 1.0)
        return line


def legal(mask: Array) -> Array:
    """b1 [N, A]: the mask, with everything allowed in rows that allow nothing."""
    everything: Array = mask | ~mask.any(axis=1, keepdims=True)
    return everything


def choose(q: Array, mask: Array | None, epsilon: Array, noise: Array) -> tuple[Array, Array]:
    """Actions i8 [N] from 0, and their probabilities f8 [N].

    `q` f4 [N, A], -inf where masked; `mask` b1 [N, A] of `legal`; `epsilon` f8 [N]; `noise` f8 [N, NUM_NOISE] in
    (0, 1).
    """
    num_actions = q.shape[1]
    greedy = q.argmax(axis=1)
    if mask is None:
        count: Array | int = num_actions
        random = (noise[:, 1] * num_actions).astype(np.int64)
    else:
        count = mask.sum(axis=1)
        nth = (noise[:, 1] * count).astype(np.int64)
        random = (mask.cumsum(axis=1) > nth[:, None]).argmax(axis=1)
    choice: Array = np.where(noise[:, 0] < epsilon, random, greedy)
    probability: Array = epsilon / count + (1.0 - epsilon) * (choice == greedy)
    return choice, probability
