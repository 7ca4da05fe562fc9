"""The attributes of an object as plain values, and back into another object that was made alike.

Left out, because they do not change: spaces that nobody samples from, specs, functions, classes, modules, and what a
wrapper wraps. An attribute that is an object of a Python class is walked into; one that is anything else makes the
object NotPlain. Large nested containers that equal those of the first object that was walked, such as tables of
transitions, are not copied: `UNCHANGED` stands for them.

Invariants: a captured object shares nothing with the one that it is put into (test_fields_share_nothing); a table that
did change is copied like anything else (test_a_changed_table_is_part_of_the_state).
"""

from __future__ import annotations

from typing import Any, Final

import gymnasium
import numpy as np

from envserver.snapshots.generators import CONSTANT, SKIPPED, is_drawn_from
from envserver.snapshots.plain import ATOMS, MAX_DEPTH, NotPlain, Randomness, copied, revived, size_of

UNCHANGED: Final = "\0unchanged"  # no attribute of an environment says this by itself
_OBJECT: Final = "\0object"
_LARGE: Final = 64  # values in a nested container from which on comparing is cheaper than copying
_FIXED: Final = (gymnasium.Space, gymnasium.Env, *CONSTANT)
_SKIPPED: Final = SKIPPED | {"env"}
_SPECIAL: Final = frozenset({"__slots__", "__new__", "__setstate__", "__deepcopy__", "__getnewargs__"})


class Misfit(ValueError):
    """The state does not fit the object that it is put into."""


class Fields:
    """Captures and restores objects of one class. The first object that is captured is the model of the others."""

    def __init__(self) -> None:
        self._tables: dict[str, Any] | None = None  # of the model, by attribute; never written into

    def capture(self, target: Any) -> dict[str, Any]:
        """A plain copy of the object's attributes."""
        if self._tables is None:
            self._tables = _tables_of(target)
        state: dict[str, Any] = {}
        for name, value in target.__dict__.items():
            if name in _SKIPPED:
                continue
            if value.__class__ in ATOMS:  # most attributes of most environments
                state[name] = value
            elif name in self._tables and _same(value, self._tables[name]):
                state[name] = UNCHANGED
            elif not isinstance(value, _FIXED):
                state[name] = _captured(value, MAX_DEPTH)
            elif isinstance(value, gymnasium.Space) and is_drawn_from(value):
                raise NotPlain("a space that it samples from")
        return state

    def restore(self, target: Any, state: dict[str, Any]) -> None:
        """Give the object the attributes that were captured, and no other plain ones. Misfit where it cannot be."""
        attributes = target.__dict__
        for name in attributes.keys() - state.keys() - _SKIPPED:
            if not isinstance(attributes[name], _FIXED):
                del attributes[name]
        for name, saved in state.items():
            if saved.__class__ in ATOMS:
                if saved == UNCHANGED:
                    self._restore_table(attributes, name)
                else:
                    attributes[name] = saved
            elif saved.__class__ is _Object:
                _restore_object(attributes.get(name), saved, name)
            else:
                attributes[name] = revived(saved, attributes.get(name))

    def _restore_table(self, attributes: dict[str, Any], name: str) -> None:
        if self._tables is None or name not in self._tables:
            raise Misfit(f"attribute {name!r} is said to be that of another environment")
        if not _same(attributes.get(name), self._tables[name]):
            attributes[name] = copied(self._tables[name])

    def tables_of(self, state: dict[str, Any]) -> list[str]:
        """The attributes of which the state says nothing but `UNCHANGED`; no generator is within them."""
        return [name for name in self.tables if state.get(name) == UNCHANGED]

    @property
    def tables(self) -> dict[str, Any]:
        """What `UNCHANGED` stands for, by attribute."""
        return self._tables or {}


class _Object(dict[str, Any]):
    """The attributes of an object that is an attribute."""


def _captured(value: Any, depth: int) -> Any:
    try:
        return copied(value)
    except NotPlain:
        if not depth or not _is_simple(value):
            raise
        found = _Object()
        for name, each in value.__dict__.items():
            if not isinstance(each, _FIXED):
                found[name] = _captured(each, depth - 1)
        return found


def _is_simple(value: Any) -> bool:
    """An object whose `__dict__` is all there is: no containers in disguise, slots, or copying of its own."""
    cls = type(value)
    bases = [vars(base) for base in cls.__mro__ if base is not object]
    return hasattr(value, "__dict__") and all("__module__" in own and not _SPECIAL & own.keys() for own in bases)


def _restore_object(target: Any, state: _Object, name: str) -> None:
    if target is None or not _is_simple(target):
        raise Misfit(f"attribute {name!r} is no object like the one that was captured")
    attributes = target.__dict__
    for key, saved in state.items():
        if saved.__class__ is _Object:
            _restore_object(attributes.get(key), saved, f"{name}.{key}")
        else:
            attributes[key] = revived(saved, attributes.get(key))


def size_of_fields(state: dict[str, Any]) -> int:
    """About how many bytes captured attributes take."""
    size = 64 + 100 * len(state)
    for each in state.values():
        if each.__class__ not in ATOMS:
            size += size_of_fields(each) if each.__class__ is _Object else size_of(each)
    return size


def dump_fields(state: dict[str, Any]) -> dict[str, Any]:
    """Plain all through: objects that are attributes become tuples that say so."""
    return {name: (_OBJECT, dump_fields(each)) if isinstance(each, _Object) else each for name, each in state.items()}


def load_fields(value: Any) -> dict[str, Any]:
    """What `dump_fields` gave; Misfit where it is no such thing."""
    return _loaded(value, {})


def _loaded(value: Any, into: dict[str, Any]) -> dict[str, Any]:
    if type(value) is not dict or not all(type(name) is str and name not in _SKIPPED for name in value):
        raise Misfit("not the attributes of an object")
    for name, each in value.items():
        is_object = type(each) is tuple and len(each) == 2 and each[0].__class__ is str and each[0] == _OBJECT
        into[name] = _loaded(each[1], _Object()) if is_object else each
    return into


def _tables_of(target: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in target.__dict__.items():
        if isinstance(value, dict | list) and name not in _SKIPPED and _count(value, _LARGE) > _LARGE:
            try:
                found[name] = copied(value)
            except NotPlain:
                continue
            if _holds_arrays_or_randomness(found[name]):
                del found[name]
    return found


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


def _same(value: Any, table: Any) -> bool:
    return value.__class__ is table.__class__ and bool(value == table)
