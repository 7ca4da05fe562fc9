"""The random generators within an environment: where luck begins anew, all of it does.

Whatever an attribute leads to is walked through: containers of any size, objects, other environments. What cannot
change is not, nor the hidden values of functions.

Invariants: every generator is found once, in an order that is the same for environments that are alike
(test_every_generator_is_found_once); a generator that the walk passes by would show a planner the dice that will fall
(test_generators_are_found_wherever_they_are); states have generators that were not used yet
(test_a_generator_that_was_not_used_yet_belongs_to_the_state).
"""

from __future__ import annotations

import logging
import types
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from envserver.snapshots.codec import AnyEnv
from envserver.snapshots.plain import ATOMS, is_generator, seed_randomness

# Kinds of values that stay what they are, wherever they are referred to from.
CONSTANT: Final = (
    EnvSpec,
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    np.dtype,
    np.ufunc,
    logging.Logger,
)
# Gymnasium's own: a cache that is filled on first use, and what a constructor was called with.
SKIPPED: Final = frozenset({"_cached_spec", "_saved_kwargs"})


def generators_of(target: Any, passed_by: Collection[str] = ()) -> Iterator[Any]:
    """The random generators within an object, each once; not those within its attributes `passed_by`.

    What a wrapper wraps is a layer of its own, and passed by too.
    """
    wrapped = {"env"} if isinstance(target, gymnasium.Wrapper) else set()
    return filter(is_generator, _walk(target, SKIPPED.union(passed_by, wrapped)))


def begin_generators(env: AnyEnv) -> None:
    """Give every environment within the generator that Gymnasium would make when it is first used.

    One that a copy has to make for itself has other luck than the original.
    """
    for value in [env, *_walk(env, SKIPPED)]:
        if isinstance(value, gymnasium.Env) and not isinstance(value, gymnasium.Wrapper):
            begin_generator(value)


def begin_generator(simulator: AnyEnv) -> None:
    """The same for one environment that is no wrapper."""
    if simulator.__dict__.get("_np_random") is None:
        _ = simulator.np_random


def _walk(target: Any, skipped: frozenset[str]) -> Iterator[Any]:
    """Whatever the attributes of an object lead to, each value once."""
    seen = {id(target)}
    stack = _attributes_of(target, skipped)
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if not is_generator(value):
            stack += _parts_of(value)


def _parts_of(value: Any) -> list[Any]:
    """What a value consists of, the last one first."""
    if isinstance(value, CONSTANT) or (isinstance(value, gymnasium.Space) and not is_drawn_from(value)):
        return []
    if isinstance(value, np.ndarray):
        return _changing(value.ravel().tolist()) if value.dtype.hasobject else []
    parts = _attributes_of(value, SKIPPED)
    if isinstance(value, dict):
        parts += _changing(value.values())
    elif isinstance(value, list | tuple | deque):
        parts += _changing(value)
    return parts


def _attributes_of(value: Any, skipped: frozenset[str]) -> list[Any]:
    kind: Any = type(value)
    found = [each for name, each in getattr(value, "__dict__", {}).items() if name not in skipped]
    for member in _slots_of(kind):
        try:
            found.append(member.__get__(value))
        except AttributeError:  # a slot that is empty
            continue
    return _changing(found)


@lru_cache(1024)
def _slots_of(cls: type) -> tuple[types.MemberDescriptorType, ...]:
    members = [each for base in cls.__mro__ for each in vars(base).values()]
    return tuple(each for each in members if isinstance(each, types.MemberDescriptorType))


def _changing(values: Iterable[Any]) -> list[Any]:
    return [each for each in values if each.__class__ not in ATOMS][::-1]


def is_drawn_from(space: gymnasium.Space[Any]) -> bool:
    """Whether somebody has seeded the space or sampled from it: from then on it has a generator."""
    if space.__dict__.get("_np_random") is not None:
        return True
    children = getattr(space, "spaces", ())
    return any(map(is_drawn_from, children.values() if isinstance(children, Mapping) else children))


def reseed(generators: Iterable[Any], seed: int) -> None:
    """Begin random generators anew, each with a stream of its own."""
    seen: set[int] = set()
    for generator in generators:
        if id(generator) not in seen:
            seen.add(id(generator))
            seed_randomness(generator, seed, len(seen))
