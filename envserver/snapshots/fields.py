"""The attributes of an object as plain values, and back into another object that was made alike.

An attribute that is an object of a Python class is walked into; one that is anything else but plain makes the object
NotPlain. The first object that is captured is the model of the others: `UNCHANGED` stands for what is as it is there.
That are large nested containers, such as tables of transitions, and what is not copied at all: spaces that nobody
samples from, specs, functions, classes, modules. Such a value that is another one than the model's is referred to, as
are the classes of objects that are not in the model, and a state with references has no bytes.

Invariants: a captured object shares nothing that can change with the one that it is put into
(test_fields_share_nothing); a table that did change is copied like anything else
(test_a_changed_table_is_part_of_the_state); objects come back with their classes, functions as they were, and nothing
is left over (test_what_changes_late_comes_back); what was one object is one again, and no two are
(test_what_was_one_object_is_one_again).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import gymnasium

from envserver.snapshots.codec import layers_of
from envserver.snapshots.constants import CONSTANTS, is_alike, is_bound
from envserver.snapshots.generators import SKIPPED, is_drawn_from
from envserver.snapshots.plain import ATOMS, MAX_DEPTH, NotPlain, copied, revived, size_of
from envserver.snapshots.tables import is_same, tables_of

UNCHANGED: Final = "\0unchanged"  # no attribute of an environment says this by itself
_OBJECT: Final = "\0object"
_AGAIN: Final = "\0again"
_SPECIAL: Final = frozenset({"__slots__", "__new__", "__setstate__", "__deepcopy__", "__getnewargs__"})

State = dict[str, Any]


class Misfit(ValueError):
    """The state does not fit the object that it is put into."""


class _Object(NamedTuple):
    """An object that is an attribute. `known`: its class is that of the model's object in its place."""

    cls: type
    attributes: State
    known: bool


class _Again(NamedTuple):
    """What the walk met before, layers of the environment first."""

    number: int


@dataclass
class _Model:
    """What objects in one place are compared with."""

    cls: type
    constants: dict[str, Any] = field(default_factory=dict)  # the ones met last, which are like the first
    tables: dict[str, Any] = field(default_factory=dict)  # never written into
    objects: dict[str, _Model] = field(default_factory=dict)

    def at(self, name: str, cls: type) -> _Model | None:
        """Of the object in an attribute; None where that is of another class."""
        found = self.objects.get(name)
        return found if found is not None and found.cls is cls else None

    def told(self) -> list[Any]:
        """What a state without references takes for granted, as a plain value."""
        constants = {name: getattr(value, "__qualname__", "") for name, value in self.constants.items()}
        objects = {name: each.told() for name, each in self.objects.items()}
        return [self.cls.__qualname__, constants, self.tables, objects]


class Fields:
    """Captures and restores objects of one class. The first object that is captured is the model of the others."""

    def __init__(self) -> None:
        self._model: _Model | None = None

    def capture(self, target: Any) -> State:
        """A plain copy of the object's attributes; references in it are to what cannot change."""
        if self._model is None:
            self._model = _model_of(target, set())
            self._model.tables = tables_of(target, skipped_in(target))
        return _Capturing(target).attributes(target, self._model, MAX_DEPTH)

    def restore(self, target: Any, state: State) -> None:
        """Give the object the attributes that were captured, and no others. Misfit where it cannot be."""
        _Restoring(target).attributes(target, state, self._known())

    def dump(self, state: State) -> State:
        """Plain all through: objects that are attributes become tuples that say so. NotPlain with references."""
        return {name: _dumped(each) for name, each in state.items()}

    def load(self, value: Any) -> State:
        """What `dump` gave; Misfit where it is no such thing."""
        return _loaded(value, self._known())

    def told(self) -> list[Any]:
        """What bytes of states take for granted."""
        return self._known().told()

    def unchanged_tables(self, state: State) -> list[str]:
        """The attributes of which the state says nothing but `UNCHANGED`; no generator is within them."""
        return [name for name in self._known().tables if state.get(name) == UNCHANGED]

    def _known(self) -> _Model:
        if self._model is None:
            raise Misfit("no environment was captured yet")
        return self._model


def skipped_in(owner: Any) -> frozenset[str]:
    """Attributes that are no part of a state; what a wrapper wraps has one of its own."""
    return SKIPPED | {"env"} if isinstance(owner, gymnasium.Wrapper) else SKIPPED


def _model_of(owner: Any, seen: set[int], depth: int = MAX_DEPTH) -> _Model:
    seen.add(id(owner))
    model = _Model(type(owner))
    for name, value in owner.__dict__.items():
        if isinstance(value, CONSTANTS):
            model.constants[name] = value
        elif depth and _is_simple(value.__class__) and id(value) not in seen:
            model.objects[name] = _model_of(value, seen, depth - 1)
    return model


@lru_cache(1024)
def _is_simple(cls: Any) -> bool:
    """Whether an object's `__dict__` is all there is: no containers in disguise, slots, or copying of its own."""
    bases = [vars(base) for base in cls.__mro__ if base is not object]
    return bool(bases) and all("__module__" in own and not _SPECIAL & own.keys() for own in bases)


# ------------------------------------------------------------------------------------------------------------ capture


class _Capturing:
    """One walk through an object. Whatever can change has a number, in the order of the walk."""

    def __init__(self, root: Any) -> None:
        self._numbers = {id(layer): number for number, layer in enumerate(layers_of(root))}

    def attributes(self, owner: Any, model: _Model | None, depth: int) -> State:
        if not depth:
            raise NotPlain(f"objects nested more than {MAX_DEPTH} deep")
        state: State = {}
        skipped = skipped_in(owner)
        for name, value in owner.__dict__.items():
            if name in skipped:
                continue
            if value.__class__ in ATOMS:  # most attributes of most environments
                state[name] = value
            elif id(value) in self._numbers:
                state[name] = _Again(self._numbers[id(value)])
            elif isinstance(value, CONSTANTS):
                state[name] = _constant(name, value, model)
            else:
                self._numbers[id(value)] = len(self._numbers)
                state[name] = self._value(name, value, model, depth)
        return state

    def _value(self, name: str, value: Any, model: _Model | None, depth: int) -> Any:
        if model is not None and name in model.tables and is_same(value, model.tables[name]):
            return UNCHANGED
        cls: Any = type(value)
        if not _is_simple(cls):
            return copied(value)
        inner = None if model is None else model.at(name, cls)
        return _Object(cls, self.attributes(value, inner, depth - 1), inner is not None)


def _constant(name: str, value: Any, model: _Model | None) -> Any:
    if isinstance(value, gymnasium.Space) and is_drawn_from(value):
        raise NotPlain("a space that it samples from")
    if model is not None and name in model.constants and is_alike(value, model.constants[name]):
        model.constants[name] = value  # so that the next look at the same environment is short
        return UNCHANGED
    if is_bound(value):
        raise NotPlain(f"in {name!r} a function with values of its own, which was another one at first")
    return value


# ------------------------------------------------------------------------------------------------------------ restore


class _Restoring:
    """The same walk through a state."""

    def __init__(self, root: Any) -> None:
        self._met: list[Any] = list(layers_of(root))
        self._taken = set(map(id, self._met))

    def attributes(self, owner: Any, state: State, model: _Model | None) -> None:
        attributes = owner.__dict__
        for name in attributes.keys() - state.keys() - skipped_in(owner):
            del attributes[name]
        is_more = not state.keys() <= attributes.keys()
        for name, saved in state.items():
            if saved.__class__ in ATOMS and saved != UNCHANGED:
                attributes[name] = saved
            else:
                attributes[name] = self._value(name, saved, attributes.get(name), model)
        if is_more:  # generators are numbered in the order of attributes
            for name in state:
                attributes[name] = attributes.pop(name)

    def _value(self, name: str, saved: Any, current: Any, model: _Model | None) -> Any:
        kind = saved.__class__
        if kind is _Again:
            if saved.number >= len(self._met):
                raise Misfit(f"attribute {name!r} refers to nothing")
            return self._met[saved.number]
        if kind is str:
            return self._unchanged(name, current, model)
        if kind is _Object:
            return self._object(name, saved, current, model)
        if isinstance(saved, CONSTANTS):
            return saved
        return self._meet(revived(saved, None if id(current) in self._taken else current))

    def _unchanged(self, name: str, current: Any, model: _Model | None) -> Any:
        if model is not None and name in model.tables:
            table = model.tables[name]
            return self._meet(current if is_same(current, table) else copied(table))
        if model is None or name not in model.constants:
            raise Misfit(f"attribute {name!r} is said to be that of another environment")
        known = model.constants[name]
        if is_alike(current, known):
            model.constants[name] = current
            return current
        if is_bound(known):
            raise Misfit(f"attribute {name!r} is a function with values of another environment")
        return known

    def _object(self, name: str, saved: _Object, current: Any, model: _Model | None) -> Any:
        if type(current) is not saved.cls or id(current) in self._taken:
            current = object.__new__(saved.cls)
        self._meet(current)
        self.attributes(current, saved.attributes, None if model is None else model.at(name, saved.cls))
        return current

    def _meet(self, value: Any) -> Any:
        self._met.append(value)
        self._taken.add(id(value))
        return value


# -------------------------------------------------------------------------------------------------------------- bytes


def size_of_fields(state: State) -> int:
    """About how many bytes captured attributes take."""
    size = 64 + 100 * len(state)
    for each in state.values():
        if each.__class__ not in ATOMS:
            size += size_of_fields(each.attributes) if each.__class__ is _Object else size_of(each)
    return size


def _dumped(each: Any) -> Any:
    if each.__class__ is _Again:
        return (_AGAIN, each.number)
    if each.__class__ is not _Object:
        return each
    if not each.known:
        raise NotPlain(f"a {each.cls.__qualname__}, which was not there at first, has no bytes")
    return (_OBJECT, {name: _dumped(inner) for name, inner in each.attributes.items()})


def _loaded(value: Any, model: _Model) -> State:
    if type(value) is not dict or not all(type(name) is str and name not in SKIPPED for name in value):
        raise Misfit("not the attributes of an object")
    state: State = {}
    for name, each in value.items():
        tag = each[0] if type(each) is tuple and len(each) == 2 and type(each[0]) is str else ""
        if tag == _OBJECT:
            if name not in model.objects:
                raise Misfit(f"attribute {name!r} is no object here")
            inner = model.objects[name]
            each = _Object(inner.cls, _loaded(each[1], inner), True)
        elif tag == _AGAIN:
            if type(each[1]) is not int or each[1] < 0:
                raise Misfit(f"attribute {name!r} refers to nothing")
            each = _Again(each[1])
        state[name] = each
    return state
