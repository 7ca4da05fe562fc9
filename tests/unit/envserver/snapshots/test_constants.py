"""Which constants are alike, and which belong to one environment."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest

from envserver.snapshots.constants import is_alike, is_bound


class Owner:
    """Something that functions hold."""


def holding(value: Any) -> Any:
    """A function that holds a value."""
    return lambda: value


def with_default(value: Any) -> Any:
    """A function that has a value as its default."""

    def function(x: Any = value, *, y: Any = value) -> Any:
        return x, y

    return function


def calling_itself() -> Any:
    """A function that holds itself."""

    def again(count: int) -> int:
        return again(count - 1) if count else 0

    return again


def holding_nothing_yet() -> Any:
    """A function whose name inside has no value."""

    def function() -> Any:
        return later

    if math.pi < 0.0:
        later = 3
    return function


@pytest.mark.parametrize("make", [holding, with_default])
def test_functions_are_alike_by_what_they_do(make: Any) -> None:
    """Same code, and equal values inside; of objects the class, of generators nothing: those are restored apart."""
    rng, discrete = np.random.default_rng, gymnasium.spaces.Discrete
    same: list[Any] = [(3, 3), ([1, 2], [1, 2]), (np.ones(2), np.ones(2)), (discrete(2), discrete(2))]
    for mine, theirs in (*same, (Owner(), Owner()), (rng(1), rng(2))):
        assert is_alike(make(mine), make(theirs))
    other: list[Any] = [(3, 4), ([1], [2]), (np.ones(2), np.zeros(2)), (discrete(2), discrete(3))]
    for mine, theirs in (*other, (Owner(), 3), (Owner, Poor), (math, np)):
        assert not is_alike(make(mine), make(theirs))
    assert not is_alike(holding(3), with_default(3))
    assert is_alike(make(holding(1)), make(holding(1)))
    assert not is_alike(make(holding(1)), make(with_default(1)))


class Poor:
    """Another class."""


def test_other_constants_are_alike_if_they_are_equal() -> None:
    """Spaces and dtypes by their values, specs always, methods in C by name and owner's class, all else by identity."""
    discrete = gymnasium.spaces.Discrete
    specs = gymnasium.spec("CartPole-v1"), gymnasium.spec("Pendulum-v1")
    alike = [(discrete(2), discrete(2)), (np.dtype("f4"), np.dtype("f4")), specs, ([].append, [1].append)]
    others = [(discrete(2), discrete(3)), (np.dtype("f4"), np.dtype("f8")), (Owner, Poor), (math.sin, math.cos)]
    others += [([].append, [].remove), ([].pop, {}.pop), (math.sin, specs[0])]
    assert [is_alike(mine, theirs) for mine, theirs in alike] == [True] * 4
    assert [is_alike(mine, theirs) for mine, theirs in others] == [False] * 7


def test_bound_functions_belong_to_one_environment() -> None:
    """A function with an object, a container or another function inside, and a method; not one with a number."""
    bound = [holding(Owner()), with_default([]), calling_itself(), holding_nothing_yet(), [].append]
    free = [holding(3), holding(Owner), with_default("x"), math.sin, Owner, calling_itself, np.add, math]
    assert [is_bound(value) for value in bound] == [True] * 5
    assert [is_bound(value) for value in free] == [False] * 8
    assert is_alike(calling_itself(), calling_itself())
    assert is_alike(holding_nothing_yet(), holding_nothing_yet())
