"""Large nested containers that an environment has from the start, such as tables of transitions.

Invariant: what `==` cannot tell apart is no table (test_what_equality_does_not_see_is_no_table).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np

from envserver.snapshots.plain import NotPlain, Randomness, copied

LARGE: Final = 64  # values in a nested container from which on comparing is cheaper than copying


def tables_of(owner: Any, skipped: Collection[str]) -> dict[str, Any]:
    """Copies of the tables among an object's attributes."""
    found: dict[str, Any] = {}
    for name, value in owner.__dict__.items():
        if isinstance(value, dict | list) and name not in skipped and _count(value, LARGE) > LARGE:
            try:
                found[name] = copied(value)
            except NotPlain:
                continue
            if _holds_arrays_or_randomness(found[name]):
                del found[name]
    return found


def is_same(value: Any, table: Any) -> bool:
    """Whether it is what the table was."""
    return value.__class__ is table.__class__ and bool(value == table)


def _count(value: Any, limit: int) -> int:
    """Values in nested lists, tuples and dicts, counted up to a little over `limit`."""
    if not isinstance(value, dict | list | tuple):
        return 1
    total = 0
    for each in value.values() if isinstance(value, dict) else value:
        total += _count(each, limit - total)
        if total > limit:
            break
    return total


def _holds_arrays_or_randomness(value: Any) -> bool:
    """What `==` does not compare."""
    if isinstance(value, np.ndarray) or value.__class__ is Randomness:
        return True
    if isinstance(value, dict):
        return any(map(_holds_arrays_or_randomness, value.values()))
    return isinstance(value, list | tuple) and any(map(_holds_arrays_or_randomness, value))
