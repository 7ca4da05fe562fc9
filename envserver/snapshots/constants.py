"""Values that are not copied, because they do not change: functions, classes, modules, spaces.

Another one may take the place of one, though: `is_alike` tells. Environments that are made alike have functions of
their own, of the same code; some hold values, such as the environment itself, and belong to one environment.

Invariants: functions are alike if they do the same (test_functions_are_alike_by_what_they_do); what belongs to an
environment is told from what any may refer to (test_bound_functions_belong_to_one_environment).
"""

from __future__ import annotations

import types
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from envserver.snapshots.generators import CONSTANT
from envserver.snapshots.plain import ATOMS, NotPlain, copied, dump, is_generator

CONSTANTS: Final = (gymnasium.Space, *CONSTANT)
_EMPTY: Final = object()


def is_alike(value: Any, known: Any) -> bool:
    """Whether an environment with the one goes on as one with the other."""
    if value is known:
        return True
    if value.__class__ is not known.__class__:
        return False
    if isinstance(value, types.FunctionType):
        return _is_alike_function(value, known)
    if isinstance(value, types.BuiltinFunctionType):
        mine, theirs = value.__self__, known.__self__
        return value.__qualname__ == known.__qualname__ and is_bound(value) and mine.__class__ is theirs.__class__
    if isinstance(value, gymnasium.Space | np.dtype):
        return bool(value == known)
    return isinstance(value, EnvSpec)  # of the same environment, however it was made


def _is_alike_function(value: types.FunctionType, known: types.FunctionType) -> bool:
    mine, theirs = _values_of(value), _values_of(known)
    return value.__code__ is known.__code__ and len(mine) == len(theirs) and all(map(_is_alike_value, mine, theirs))


def _is_alike_value(mine: Any, theirs: Any) -> bool:
    if mine is theirs:
        return True
    if mine.__class__ is not theirs.__class__:
        return False
    if isinstance(mine, types.FunctionType):  # not looked into: one may hold itself
        return mine.__code__ is theirs.__code__
    if isinstance(mine, CONSTANTS):
        return is_alike(mine, theirs)
    try:
        return is_generator(mine) or dump(copied(mine)) == dump(copied(theirs))
    except NotPlain:
        return True


def is_bound(value: Any) -> bool:
    """Whether it is a function that holds something that may change, and with it belongs to one environment."""
    if isinstance(value, types.BuiltinFunctionType):
        return not isinstance(value.__self__, types.ModuleType | type | None)
    return isinstance(value, types.FunctionType) and not all(map(_is_free, _values_of(value)))


def _is_free(value: Any) -> bool:
    return value.__class__ in ATOMS or isinstance(value, type | types.ModuleType)


def _values_of(function: types.FunctionType) -> list[Any]:
    """What a function holds: its closure, and its defaults."""
    held: list[Any] = []
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # a name that has no value yet
            held.append(_EMPTY)
    return [*held, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
