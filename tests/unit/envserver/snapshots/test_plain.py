"""Plain values: copies, bytes, generators."""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from envserver.snapshots.plain import (
    MAX_DEPTH,
    BadBytes,
    NotPlain,
    Randomness,
    apply_randomness,
    copied,
    dump,
    is_generator,
    load,
    randomness_of,
    revived,
    seed_randomness,
    size_of,
)

atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.sampled_from([np.float32(1.5), np.int8(-3), np.bool_(True), np.str_("word")])
)
arrays = hnp.arrays(
    st.sampled_from(["<f4", "<f8", "<i2", ">i4", "|u1", "|b1", "<c8", "|S3", "<U2"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
hashable = st.integers() | st.text() | st.tuples(st.integers(), st.booleans())
values = st.recursive(
    atoms | arrays,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(hashable, inner, max_size=3)
        | st.sets(hashable, max_size=3)
        | st.frozensets(hashable, max_size=3)
        | st.builds(deque, st.lists(inner, max_size=3), st.none() | st.integers(3, 5))
    ),
    max_leaves=12,
)


def same(ours: Any, theirs: Any) -> bool:
    """Equal, and of the same types all through."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, np.ndarray | np.generic):
        return (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, deque) and ours.maxlen != theirs.maxlen:
        return False
    if isinstance(ours, list | tuple | deque):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == theirs)


@given(values)
def test_any_plain_value_survives_its_bytes(value: Any) -> None:
    """What is written reads back equal, type by type, and so does a copy."""
    assert same(load(dump(value)), value)
    assert same(copied(value), value)
    assert same(revived(copied(value), None), value)
    assert size_of(value) > 0


@given(values, st.data())
def test_damaged_bytes_are_refused(value: Any, data: st.DataObject) -> None:
    """A cut, a byte too many, a changed byte: BadBytes, or another plain value; never anything else."""
    written = dump(value)
    with pytest.raises(BadBytes):
        load(written[: data.draw(st.integers(0, len(written) - 1))])
    with pytest.raises(BadBytes):
        load(written + b"N")
    at = data.draw(st.integers(0, len(written) - 1))
    with contextlib.suppress(BadBytes):
        dump(load(written[:at] + bytes([data.draw(st.integers(0, 255))]) + written[at + 1 :]))


@given(st.binary(max_size=64))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    """Bytes from anywhere end in a value or in BadBytes."""
    with contextlib.suppress(BadBytes, NotPlain):
        dump(load(data))


class Colour(Enum):
    RED = 1


def test_what_is_not_plain_is_named() -> None:
    """Objects, arrays of objects and bottomless nesting have no copy; members of an Enum have one, but no bytes."""
    with pytest.raises(NotPlain, match="object"):
        copied([object()])
    with pytest.raises(NotPlain, match="objects"):
        copied(np.array([{}], dtype=object))
    deep: Any = []
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    for refuses in (copied, dump):
        with pytest.raises(NotPlain, match="deep"):
            refuses(deep)
    assert copied(Colour.RED) is Colour.RED
    for value in (Colour.RED, object(), np.array([{}], dtype=object), {1: range(3)}):
        with pytest.raises(NotPlain):
            dump(value)


def test_copies_share_nothing() -> None:
    """Writing into the original or into what was revived changes no copy."""
    original: dict[str, Any] = {"a": np.zeros(3), "b": [[1], deque([np.zeros(2)])]}
    copy = copied(original)
    original["a"][0] = 9
    original["b"][0].append(2)
    revived(copy, None)["a"][1] = 9
    revived(copy, None)["b"][1][0][:] = 9
    assert same(copy, {"a": np.zeros(3), "b": [[1], deque([np.zeros(2)])]})


GENERATORS: dict[str, Callable[[], Any]] = {
    "PCG64": lambda: np.random.default_rng(1),
    "PCG64DXSM": lambda: np.random.Generator(np.random.PCG64DXSM(1)),
    "MT19937": lambda: np.random.Generator(np.random.MT19937(1)),
    "Philox": lambda: np.random.Generator(np.random.Philox(1)),
    "SFC64": lambda: np.random.Generator(np.random.SFC64(1)),
    "RandomState": lambda: np.random.RandomState(1),
    "Random": lambda: random.Random(1),
}


def draw(generator: Any) -> float:
    return float(generator.normalvariate(0, 1) if isinstance(generator, random.Random) else generator.normal())


@pytest.mark.parametrize("kind", GENERATORS)
def test_generators_go_on_where_they_were(kind: str) -> None:
    """In place, as a new object, and from bytes; in place it stays the same object, for whoever shares it."""
    generator = GENERATORS[kind]()
    draw(generator)
    saved = copied(generator)
    assert isinstance(saved, Randomness)
    assert saved.kind == kind
    wanted = [draw(generator) for _ in range(3)]
    assert revived(saved, generator) is generator
    assert [draw(generator) for _ in range(3)] == wanted
    for again in (revived(saved, None), apply_randomness(load(dump(saved)), "something else")):
        assert [draw(again) for _ in range(3)] == wanted
    assert size_of(saved) > 100


@pytest.mark.parametrize("kind", GENERATORS)
def test_generators_begin_anew(kind: str) -> None:
    """The same seed and number give the same stream; another one of either gives another one."""

    def first(seed: int, number: int) -> float:
        generator = GENERATORS[kind]()
        seed_randomness(generator, seed, number)
        return draw(generator)

    assert first(5, 1) == first(5, 1)
    assert len({first(5, 1), first(5, 2), first(6, 1)}) == 3


def test_only_generators_are_generators() -> None:
    """A subclass of Python's generator may keep more than its state."""

    class Odd(random.Random):
        pass

    assert [is_generator(each) for each in (Odd(), 3, None, np.random)] == [False] * 4
    assert randomness_of(Odd()) is None


def test_bytes_name_no_other_generators() -> None:
    """The kinds are a closed set."""
    with pytest.raises(BadBytes, match="unknown generator"):
        load(dump(Randomness("os.system", {})))
