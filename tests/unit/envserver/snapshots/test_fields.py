"""Objects as their attributes: what is captured, what is left out, what comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from envserver.snapshots import plain
from envserver.snapshots.fields import (
    UNCHANGED,
    Fields,
    Misfit,
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
        state = fields.load(plain.load(plain.dump(fields.dump(state))))
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
    assert fields.unchanged_tables(state) == ["table"]
    assert fields.unchanged_tables(changed) == []


def test_what_does_not_change_is_left_alone() -> None:
    """Spaces, specs, functions and what a wrapper wraps are those of the object that is restored."""
    wrapped = gymnasium.make("CartPole-v1")
    wrapped.reset(seed=1)
    fields = Fields()
    state = fields.capture(wrapped.unwrapped)
    assert {state[name] for name in ("action_space", "observation_space", "spec")} == {UNCHANGED}
    assert "env" not in Fields().capture(wrapped)
    other = gymnasium.make("CartPole-v1").unwrapped
    space = other.action_space
    fields.restore(other, state)
    assert other.action_space is space


class Poor:
    """A mode that pays nothing."""

    def pay(self) -> float:
        return 0.0


class Rich:
    """A mode that pays by dice and a board that it shares with the environment."""

    def __init__(self, env: Any) -> None:
        self.env, self.luck, self.board, self.friend = env, env.np_random, env.board, self
        self.bonus = 100.0

    def pay(self) -> float:
        self.board[0] += 1.0
        assert self.friend is self
        return float(self.luck.normal()) + self.bonus + float(self.env.board[0])


class ModesEnv(NestedEnv):
    """Its payment changes late: by another attribute, class, function or object."""

    action_space: Any = gymnasium.spaces.Discrete(3)
    board: Any

    def __init__(self) -> None:
        super().__init__()
        self.board = np.zeros(2)
        self.mode: Any = Poor()
        self.rule: Any = float
        self.item: Any = None
        self.where_it_was: Callable[[], float] = lambda: self.where

    def change(self, what: str) -> None:
        if what == "a class":
            self.mode = Rich(self)
        elif what == "an attribute":
            self.mode.pay = float
        elif what == "a function":
            self.rule = int
        elif what == "an object":
            self.item = Rich(self)
        elif what == "a space":
            self.action_space = gymnasium.spaces.Discrete(2)

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        paid = self.rule(self.where) + self.mode.pay() + self.where_it_was() + self.action_space.n
        return obs, paid + (0.0 if self.item is None else self.item.pay()), *rest


def modes(seed: int, change: str = "") -> ModesEnv:
    env = ModesEnv()
    env.reset(seed=seed)
    env.change(change)
    return env


CHANGES = ["a class", "an attribute", "a function", "an object", "a space"]


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_late_comes_back(change: str) -> None:
    """States of before and after the change, into environments of before and after it, by another change too; an object
    that is not the model's has no bytes, nor has a function."""
    fields = Fields()
    env = modes(1)
    before = fields.capture(env)
    first = future(env)
    env.change(change)
    after = fields.capture(env)
    then = future(env)
    assert [reward for _, reward in first] != [reward for _, reward in then]
    for target in (env, modes(5), *(modes(7, other) for other in CHANGES)):
        for state, wanted in ((after, then), (before, first), (after, then)):
            fields.restore(target, state)
            assert future(target) == wanted
    fields.restore(env, fields.load(plain.load(plain.dump(fields.dump(before)))))
    assert future(env) == first
    with pytest.raises(NotPlain):
        plain.dump(fields.dump(after))


def test_what_was_one_object_is_one_again() -> None:
    """Which of two parts is the current one, generators and arrays that are shared, and that are not any more."""
    fields = Fields()
    env, other = modes(1), modes(2)
    env.left, env.right = Part(), Part()  # type: ignore[attr-defined]
    env.current = env.left  # type: ignore[attr-defined]
    other.left = other.right = Part()  # type: ignore[attr-defined]
    other.own = other.np_random
    first = fields.capture(env)
    env.current = env.right  # type: ignore[attr-defined]
    env.right.speed = 7.0  # type: ignore[attr-defined]
    env.again = env.board  # type: ignore[attr-defined]
    second = fields.load(plain.load(plain.dump(fields.dump(fields.capture(env)))))
    for target in (env, other):
        found: Any = target
        fields.restore(target, second)
        assert found.current is found.right is not found.left
        assert (found.current.speed, found.left.speed) == (7.0, 1.0)
        assert found.again is found.board
        assert found.own is not found.np_random
        fields.restore(target, first)
        assert found.current is found.left is not found.right
        assert (found.current.speed, found.right.speed) == (1.0, 1.0)


@pytest.mark.parametrize("way", ["memory", "bytes"])
def test_a_part_knows_the_environment_it_is_in(way: str) -> None:
    """What refers back to its environment refers to the one that the state came into."""
    fields = Fields()
    env, other = made(), made(seed=7)
    for each in (env, other):
        each.part.inner.owner = each  # type: ignore[union-attr]
    state = fields.capture(env)
    if way == "bytes":
        state = fields.load(plain.load(plain.dump(fields.dump(state))))
    fields.restore(other, state)
    assert other.part.inner.owner is other  # type: ignore[union-attr]
    assert future(other) == future(env)


def test_generators_have_their_order_from_the_state() -> None:
    """An attribute that comes back is numbered as it was: the same seed gives the same luck."""
    fields = Fields()
    env, other = made(), made()
    state = fields.capture(env)
    fields.restore(other, {name: each for name, each in state.items() if name != "own"})
    fields.restore(other, state)
    assert list(fields.capture(other)) == list(state)


def test_functions_of_one_environment_stay_with_it() -> None:
    """A function that holds the environment is left where it is; another in its place is refused."""
    fields = Fields()
    env, other = modes(1), modes(2)
    state = fields.capture(env)
    own = other.where_it_was
    fields.restore(other, state)
    assert other.where_it_was is own
    other.where_it_was = lambda: other.where + 1.0
    with pytest.raises(NotPlain, match="where_it_was"):
        fields.capture(other)
    with pytest.raises(Misfit, match="where_it_was"):
        fields.restore(other, state)


def test_another_environment_inside_is_not_plain() -> None:
    """Its state would be lost; what is wrapped, and the environment itself, may be referred to."""
    env = made()
    env.part.env = env  # type: ignore[attr-defined]
    wrapper: Any = gymnasium.wrappers.TransformReward(env, float)
    wrapper.game = env
    fields, around = Fields(), Fields()
    fields.restore(env, fields.capture(env))
    around.restore(wrapper, around.capture(wrapper))
    assert env.part.env is wrapper.game is env  # type: ignore[attr-defined]
    wrapper.game = made()
    with pytest.raises(NotPlain, match="NestedEnv"):
        around.capture(wrapper)


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
    """Tables that nobody knows, references to nothing, objects where there are none, and what is no attributes."""
    fields = Fields()
    env = made()
    for call in (fields.told, lambda: fields.restore(env, {}), lambda: fields.load({})):
        with pytest.raises(Misfit, match="no environment"):
            call()
    fields.capture(env)
    with pytest.raises(Misfit, match="another environment"):
        fields.restore(env, {"nothing": UNCHANGED})
    with pytest.raises(Misfit, match="to nothing"):
        fields.restore(env, fields.load({"x": ("\0again", 1000)}))
    bad: list[Any] = [3, [1], {1: 2}, {"_cached_spec": 3}, {"seen": ("\0object", {})}, {"x": ("\0again", -1)}]
    for value in bad:
        with pytest.raises(Misfit):
            fields.load(value)
