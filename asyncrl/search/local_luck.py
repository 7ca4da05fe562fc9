"""The luck of a copied environment, begun anew: all of it, or a search would see the dice that will fall.

Invariants: every generator that was copied begins anew, each with a stream of its own
(test_every_generator_of_a_copy_begins_anew); one that was not copied is somebody else's, and goes on as it was
(test_generators_that_are_shared_are_left_alone).
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, Final

import gymnasium
import numpy as np

_GENERATORS: Final = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)


def reseed(env: gymnasium.Env[Any, Any], copies: Iterable[Any], seed: int) -> None:
    """Of an environment that was copied just now; `copies` are all objects that were made for it, in their order.

    What an object copies without telling `copy.deepcopy` is not among them.
    """
    found = [each for each in copies if isinstance(each, _GENERATORS)]
    own = env.unwrapped
    if not any(each is own._np_random for each in found):  # not made yet, or copied by the environment's own rules
        own.np_random = np.random.default_rng(seed)
    for number, each in enumerate(found):
        _begin(each, np.random.SeedSequence([seed, number]))


def _begin(generator: Any, sequence: np.random.SeedSequence) -> None:
    """In place: others may refer to it."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(sequence).state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(getattr(np.random, generator.get_state(legacy=False)["bit_generator"])(sequence).state)
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = type(generator)(sequence).state
    else:
        generator.seed(int(sequence.generate_state(1, np.uint64)[0]))
