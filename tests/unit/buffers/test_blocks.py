"""Views of rows that go on changing."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.buffers.blocks import BLOCK_BYTES, Blocks, View
from asyncrl.records import Array

ROW = BLOCK_BYTES // 3 - 9  # three rows a block
NUM_ROWS = 10


class Rows:
    """Ten rows of two columns in four blocks; each row is all of one number."""

    def __init__(self) -> None:
        self.columns: dict[str, Array] = {
            "wide": np.zeros((NUM_ROWS, ROW), np.uint8),
            "narrow": np.zeros(NUM_ROWS, np.int64),
        }
        self.blocks = Blocks(self.columns, NUM_ROWS)

    def write(self, rows: list[int], number: int) -> None:
        self.blocks.touch(np.array(rows, np.int64))
        for column in self.columns.values():
            column[rows] = number

    def numbers(self) -> list[int]:
        numbers: list[int] = self.columns["narrow"].tolist()
        assert (self.columns["wide"] == self.columns["narrow"][:, None]).all()
        return numbers


def content(view: View) -> list[int]:
    """What a copy made from the view holds."""
    copy = Rows()
    for block, key in enumerate(view.keys):
        if key:
            copy.blocks.load(view.keys, block, view.read(block))
    return copy.numbers()


@settings(max_examples=15)
@given(st.lists(st.one_of(st.none(), st.lists(st.integers(0, NUM_ROWS - 1), min_size=1, max_size=3)), max_size=8))
def test_a_view_stays_what_it_was(script: list[list[int] | None]) -> None:
    """Any writes and views in any order: each view, read at the very end, is what the rows were when it was taken."""
    rows = Rows()
    views: list[tuple[View, list[int]]] = []
    for number, which in enumerate(script, start=1):
        if which is None:
            views.append((rows.blocks.view(), rows.numbers()))
        else:
            rows.write(which, number)
    for view, expected in views:
        assert content(view) == expected
        assert content(view) == expected


@given(st.lists(st.one_of(st.none(), st.integers(0, NUM_ROWS - 1)), max_size=12))
def test_equal_keys_mean_equal_bytes(script: list[int | None]) -> None:
    """Over all views of a life, and over two lives of which one goes on from the other's view."""
    known: dict[str, int] = {}
    rows = Rows()
    for number, row in enumerate(script, start=1):
        if row is not None:
            rows.write([row], number)
            continue
        view = rows.blocks.view()
        for block, key in enumerate(view.keys):
            if key:
                digest = hash(view.read(block))
                assert known.setdefault(key, digest) == digest
        rows, before = Rows(), rows
        for block, key in enumerate(view.keys):
            if key:
                rows.blocks.load(view.keys, block, before.blocks.read(block))
        # What the other life does from here on is not what this one does.
        before.write([0], 99)
        other = before.blocks.view()
        known[other.keys[0]] = hash(other.read(0))


def test_what_has_not_changed_has_its_key_still() -> None:
    """Also in a later life that began with it."""
    rows = Rows()
    rows.write([0, 4], 1)
    first = rows.blocks.view()
    assert [bool(key) for key in first.keys] == [True, True, False, False]
    rows.write([5], 2)
    second = rows.blocks.view()
    assert [one == other for one, other in zip(first.keys, second.keys, strict=True)] == [True, False, True, True]
    later = Rows()
    for block in (0, 1):
        later.blocks.load(second.keys, block, second.read(block))
    assert later.blocks.view().keys == second.keys


def test_only_what_is_written_to_is_copied() -> None:
    """Once, and only for views that are still held and that had something there."""
    rows = Rows()
    rows.write([0, 3, 6], 1)
    held, dropped = rows.blocks.view(), rows.blocks.view()
    assert held.num_copied == 0
    rows.write([0], 2)
    rows.write([1, 9], 3)
    assert held.num_copied == dropped.num_copied == 1
    del dropped
    rows.write([3], 4)
    assert held.num_copied == 2
    assert rows.blocks.view().num_copied == 0


class HalfByHalf(Blocks):
    """Reads a block in two halves; `between` them something happens, once."""

    between: Callable[[], None] | None = None

    def read(self, block: int) -> bytes:
        first = super().read(block)
        between, self.between = self.between, None
        if between is not None:
            between()
        half = len(first) // 2
        return first[:half] + super().read(block)[half:]


def test_a_view_is_read_while_rows_are_written() -> None:
    """By another thread: who writes waits for who reads, and no block is seen half written."""
    rows = Rows()
    rows.blocks = blocks = HalfByHalf(rows.columns, NUM_ROWS)
    rows.write([0, 1, 2], 1)
    view = blocks.view()
    writer = threading.Thread(target=rows.write, args=([0, 1, 2], 2))

    def write() -> None:
        writer.start()
        writer.join(0.1)  # it would be through by then, if nothing held it

    blocks.between = write
    data = np.frombuffer(view.read(0), np.uint8)[: 3 * ROW]
    writer.join()
    assert (data == 1).all()
    assert rows.numbers()[:3] == [2, 2, 2]
    assert content(view)[:3] == [1, 1, 1]


def test_blocks_of_other_rows_are_refused() -> None:
    """Another number of them, or other bytes."""
    rows = Rows()
    rows.write([0], 1)
    view = rows.blocks.view()
    for keys, data in ((view.keys[:3], view.read(0)), (view.keys, view.read(0)[:-1])):
        with pytest.raises(ValueError, match="other rows"):
            Rows().blocks.load(keys, 0, data)


@pytest.mark.parametrize(("row_bytes", "rows"), [(1, BLOCK_BYTES), (2, BLOCK_BYTES // 2), (BLOCK_BYTES + 1, 1)])
def test_a_block_is_as_large_as_it_may_be(row_bytes: int, rows: int) -> None:
    """However small its rows are; a row that is larger is a block."""
    columns = {"bytes": np.empty((rows + 1, row_bytes), np.uint8)}
    assert Blocks(columns, rows + 1).num_rows == rows
