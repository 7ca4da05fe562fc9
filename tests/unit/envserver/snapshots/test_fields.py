"""Objects as their attributes: what is captured, what is left out, what comes back."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from envserver.snapshots import plain
from envserver.snapshots.fields import (
    UNCHANGED,
    Fields,
    Misfit,
    dump_fields,
    load_fields,
    size_of_fields,
)
from envserver.snapshots.plain import NotPlain
from tests.unit.envserver.snapshots.toys import NestedEnv, Part


def made(seed: int = 1, steps: int = 5) -> NestedEnv:
    env = NestedEnv()
    env.reset(seed=seed)
    for number in range(steps):
        env.step(number % 3)
    return env


def future(env: NestedEnv, steps: int = 12) -> list[Any]:
    found = []
    for number in range(steps):
        obs, reward, *_ = env.step(number % 3)
        found.append((obs.tobytes(), reward))
    return found


@pytest.mark.parametrize("way", ["memory", "bytes"])
def test_attributes_come_back(way: str) -> None:
    """Numbers, arrays, sets, objects in objects and both generators go on where they were, in another object too."""
    fields = Fields()
    env = made()
    state = fields.capture(env)
    wanted = future(env)
    if way == "bytes":
        state = load_fields(plain.load(plain.dump(dump_fields(state))))
    for target in (env, made(seed=7, steps=9), made(seed=8, steps=0)):
        fields.restore(target, state)
        assert future(target) == wanted


def test_fields_share_nothing() -> None:
    """What either environment does later changes neither the state nor the other one."""
    fields = Fields()
    env, other = made(), made(seed=9)
    state = fields.capture(env)
    before = repr(state)
    fields.restore(other, state)
    future(env)
    wanted = future(other)
    assert repr(state) == before
    fields.restore(env, state)
    assert future(env) == wanted


def test_attributes_that_appeared_later_go() -> None:
    """An attribute that the state lacks is taken away; one that the object lacks is given."""
    fields = Fields()
    env = made()
    state = fields.capture(env)
    env.mark = [1]  # type: ignore[attr-defined]
    marked = fields.capture(env)
    fields.restore(env, state)
    assert not hasattr(env, "mark")
    fields.restore(env, marked)
    assert env.mark == [1]  # type: ignore[attr-defined]


def test_a_changed_table_is_part_of_the_state() -> None:
    """A large table that is as it was costs nothing; one that differs, at capture or at restore, is put right."""
    fields = Fields()
    env, other = made(), made(seed=2)
    state = fields.capture(env)
    assert state["table"] == UNCHANGED
    assert size_of_fields(state) < 10_000
    env.table[3][1] = (3, 1, 9.0)
    changed = fields.capture(env)
    assert changed["table"][3][1] == (3, 1, 9.0)
    fields.restore(other, changed)
    assert other.table == env.table
    assert other.table is not changed["table"]
    fields.restore(other, state)
    assert other.table == NestedEnv().table
    other.table[0].clear()
    fields.restore(made(), state)
    assert fields.tables["table"] == NestedEnv().table


def test_what_does_not_change_is_left_alone() -> None:
    """Spaces, specs, functions and what a wrapper wraps are those of the object that is restored."""
    wrapped = gymnasium.make("CartPole-v1")
    wrapped.reset(seed=1)
    fields = Fields()
    state = fields.capture(wrapped.unwrapped)
    assert not {"action_space", "observation_space", "spec"} & set(state)
    assert "env" not in Fields().capture(wrapped)
    other = gymnasium.make("CartPole-v1").unwrapped
    space = other.action_space
    fields.restore(other, state)
    assert other.action_space is space


def test_foreign_objects_are_not_plain() -> None:
    """Iterators, slots and objects with a copying of their own are refused by name."""

    class Slotted:
        __slots__ = ("a",)

    class Copying(Part):
        def __deepcopy__(self, memo: Any) -> Any:
            return self

    for value in (iter(()), Slotted(), Copying(), np.array([{}], dtype=object), [Part()]):
        env = made()
        env.odd = value  # type: ignore[attr-defined]
        with pytest.raises(NotPlain):
            Fields().capture(env)


def test_states_of_other_objects_do_not_fit() -> None:
    """An object where there is none, a table that nobody knows, and bytes that are no attributes."""
    fields = Fields()
    env, bare = made(), made()
    state = fields.capture(env)
    del bare.part
    with pytest.raises(Misfit, match="part"):
        fields.restore(bare, state)
    with pytest.raises(Misfit, match="another environment"):
        fields.restore(env, {"nothing": UNCHANGED})
    for value in (3, [1], {1: 2}, {"env": 3}):
        with pytest.raises(Misfit):
            load_fields(value)
