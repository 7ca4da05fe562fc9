"""The ring's memory: what goes in comes out, and what a row costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.buffers.ring import Ring
from asyncrl.errors import LocalProtocolError
from asyncrl.records import Array
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.spec import LaneSpec
from tests.unit.buffers.stories import DEPTH, FRAME, spec_for

STATM = Path("/proc/self/statm")
ACTION = Node(kind=pb.DISCRETE, dtype=np.dtype("<i8"), n=6)


def spec_of(*leaves: Node, stack_leaf: int | None = None) -> LaneSpec:
    nodes = (Node(kind=pb.TUPLE), *leaves) if len(leaves) > 1 else leaves
    return LaneSpec("x", SpaceSpec(nodes), SpaceSpec((ACTION,)), stack_leaf=stack_leaf)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=25), st.integers(0, 99))
def test_observations_come_back(pushes: list[tuple[int, bool]], seed: int) -> None:
    """Stacks that go on and stacks that stand apart, in any slots, up to the ring's end and over it."""
    length = 12
    ring = Ring(spec_for(True), 3 * length, 3)
    rng = np.random.default_rng(seed)
    next_position = np.full(3, length - 4)  # so that the end is near
    newest: dict[int, Array] = {}
    held: dict[tuple[int, int], tuple[Array, Array, Array]] = {}
    for slot, goes_on in pushes:
        fresh = rng.integers(0, 200, (DEPTH, *FRAME)).astype(np.uint8)
        apart = not goes_on or slot not in newest
        stack = fresh if apart else np.concatenate([newest[slot][1:], fresh[-1:]])
        at = next_position[slot] + (DEPTH - 1) * apart
        vector, mask = rng.standard_normal(3).astype(np.float32), rng.random(4) < 0.5
        where = np.array([slot]), np.array([at])
        ring.write_observations(*where, [stack[None], vector[None]], mask[None], np.array([apart]))
        newest[slot], next_position[slot] = stack, at + 1
        held[slot, at] = stack, vector, mask
        held = {key: seen for key, seen in held.items() if key[1] - DEPTH + 1 > next_position[key[0]] - length - 1}
    slots, positions = np.array(list(held)).T
    rows = ring.rows_at(slots, positions)
    (stacks, vectors), (after, _) = ring.observations(rows, rows[::-1])
    masks, _ = ring.masks(rows, rows)
    assert masks is not None
    for i, (stack, vector, mask) in enumerate(held.values()):
        np.testing.assert_array_equal(stacks[i], stack)
        np.testing.assert_array_equal(vectors[i], vector)
        np.testing.assert_array_equal(masks[i], mask)
    np.testing.assert_array_equal(after, stacks[::-1])


def test_a_row_costs_a_frame() -> None:
    """An Atari row: 7056 bytes of frame, and 18 of all else; bytes stay bytes."""
    stack = Node(kind=pb.BOX, dtype=np.dtype(np.uint8), shape=(4, 84, 84))
    ring = Ring(spec_of(stack, stack_leaf=0), 1000, 4)
    assert ring.nbytes == 1000 * (84 * 84 + 8 + 4 + 4 + 2)
    assert ring.columns["obs0"].dtype == np.uint8
    whole = Ring(spec_of(stack), 1000, 4)
    assert whole.nbytes == 1000 * (4 * 84 * 84 + 8 + 4 + 4 + 2)


@pytest.mark.parametrize("code", ["?", "<i1", "<i2", "<u2", "<f2", "<f4", "<f8", "<i8", "<u8"])
def test_every_dtype_is_kept(code: str) -> None:
    """Wire dtypes come back as they are, in leaves of any shape, empty ones too."""
    dtype = np.dtype(code)
    leaves = [Node(kind=pb.BOX, parent=0, key=str(i), dtype=dtype, shape=s) for i, s in enumerate([(), (2, 3), (0,)])]
    ring = Ring(spec_of(*leaves), 20, 2)
    values = [np.ones((2, *leaf.shape), dtype) for leaf in leaves]
    ring.write_observations(np.array([0, 1]), np.array([3, 11]), values, None, np.zeros(2, np.bool_))
    found, _ = ring.observations(np.array([3, 11]), np.array([3, 11]))
    for value, array in zip(values, found, strict=True):
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, value)


@pytest.mark.skipif(not STATM.exists(), reason="asks Linux how much memory is in use")
def test_memory_is_taken_when_it_is_filled() -> None:
    """A million rows of Atari are 7 GB, of which nothing is there before anything is in them."""

    def resident() -> int:
        return int(STATM.read_text().split()[1]) * 4096

    stack = Node(kind=pb.BOX, dtype=np.dtype(np.uint8), shape=(4, 84, 84))
    before = resident()
    ring = Ring(spec_of(stack, stack_leaf=0), 1_000_000, 4)
    ring.write(np.array([700_000]), obs0=np.full((1, 84, 84), 7, np.uint8))
    assert ring.gather("obs0", np.array([700_000])).sum() == 7 * 84 * 84
    assert ring.nbytes > 7e9
    assert resident() - before < 1e8


def test_a_ring_that_holds_no_two_stacks_is_refused() -> None:
    """Each slot needs room for a stack and the one that follows it."""
    with pytest.raises(LocalProtocolError, match="11 rows is too small for 2 environments"):
        Ring(spec_for(True), 11, 2)
