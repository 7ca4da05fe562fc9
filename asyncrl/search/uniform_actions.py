"""Uniformly random actions of a Gymnasium space, out of those that a mask allows.

Invariant: what is drawn is legal, and everything legal is drawn equally often (test_legal_actions_are_equally_likely).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from asyncrl.errors import ConfigError
from asyncrl.records import Array

AnySpace = spaces.Space[Any]
Draw = Callable[[Array | None], Any]


def draws_of(space: AnySpace) -> Callable[[int], Draw]:
    """From a seed to a source of uniform actions: what `draw(mask)` gives is what `env.step` takes."""
    if isinstance(space, spaces.Discrete):
        start, num = int(space.start), int(space.n)

        def enumerated(seed: int) -> Draw:
            rng = np.random.default_rng(seed)

            def draw(mask: Array | None) -> int:
                if mask is None:
                    return start + int(rng.integers(num))
                legal = np.flatnonzero(mask)
                return start + int(legal[rng.integers(len(legal))])

            return draw

        return enumerated
    own = copy.deepcopy(space)

    def sampled(seed: int) -> Draw:
        own.seed(seed % (1 << 32))
        return lambda mask: own.sample() if mask is None else _choice(own, mask)

    return sampled


def _choice(space: AnySpace, mask: Array) -> Any:
    """Of a MultiDiscrete space, whatever its shape: one that is allowed at each place, the first where none is."""
    if not isinstance(space, spaces.MultiDiscrete) or len(mask) != space.nvec.sum():
        raise ConfigError(f"a mask over {len(mask)} choices is none for actions {space}")
    places = np.split(mask, np.cumsum(space.nvec.reshape(-1))[:-1])
    allowed = [np.flatnonzero(place) for place in places]
    chosen = [space.np_random.choice(place) if len(place) else 0 for place in allowed]
    return (np.array(chosen).reshape(space.shape) + space.start).astype(space.dtype)
