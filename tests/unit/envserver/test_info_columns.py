"""Infos: the dtypes of Gymnasium's merging, and nothing that a hostile environment puts there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from asyncrl.wire.infos import MAX_INFO_BYTES, from_proto, to_proto
from envserver.info_columns import MAX_ENTRIES, MAX_KEY, InfoCollector
from tests.unit.envserver.driving import assert_infos_equal

SAME: list[list[dict[str, Any]]] = [
    [{"int": 1, "float": 0.5, "bool": True}, {"int": 2, "float": 1.5, "bool": False}],
    [{"only here": 1}, {}, {"only there": 2.0}],
    [{"u1": np.uint8(3), "f2": np.float16(0.5), "i8": np.int64(-1)}, {"u1": np.uint8(4)}],
    [{"a": np.arange(6, dtype=np.int16).reshape(2, 3)}, {}, {"a": np.ones((2, 3), np.int16)}],
    [{"n": {"x": 1, "m": {"y": np.zeros(2, bool)}}}, {"n": {"x": 2}}, {"n": {"m": {"y": np.ones(2, bool)}}}],
    [{"nan": float("nan"), "inf": -np.inf}, {"nan": 1.0}],
    [{"empty": np.zeros((0, 2))}],
]


def collect(infos: list[Any]) -> InfoCollector:
    collector = InfoCollector()
    for row, info in enumerate(infos):
        collector.add(row, info)
    return collector


def merged(infos: list[dict[str, Any]]) -> dict[str, Any]:
    """Gymnasium's own merging."""
    env: VectorEnv[Any, Any, Any] = VectorEnv()
    env.num_envs = len(infos)
    found: dict[str, Any] = {}
    for row, info in enumerate(infos):
        found = env._add_info(found, info, row)
    return found


@pytest.mark.parametrize("infos", SAME, ids=repr)
def test_columns_are_those_of_gymnasium(infos: list[dict[str, Any]]) -> None:
    """Values, rows, shapes and dtypes, nested ones joined with a slash."""
    collector = collect(infos)
    assert_infos_equal(collector.columns(), merged(infos), len(infos))
    assert collector.dropped == 0


def test_differing_dtypes_get_one_that_holds_them() -> None:
    """Gymnasium would cut 0.5 down to 0 in a column that an integer began."""
    (column,) = collect([{"a": 1}, {"a": 0.5}, {"a": np.uint8(3)}]).columns()
    assert column.data.tolist() == [1.0, 0.5, 3.0]


@pytest.mark.parametrize(
    ("infos", "keys", "dropped"),
    [
        ([{"a": np.zeros(600, "i4"), "b": 1}, {"a": np.zeros(600, "f4"), "b": 2}], ["b"], 2),
        ([{"a": np.zeros(400, "i4")}, {"a": np.zeros(400, "f4")}], ["a"], 0),
        (
            [{"a": np.zeros(400, "i4"), "b": np.zeros(1000, "u1")}, {"a": np.zeros(400, "f4"), "c": 1}, {"d": 0.5}],
            ["b", "c", "d"],
            2,
        ),
    ],
    ids=["alone too wide", "fits", "too wide beside another"],
)
def test_what_grows_when_dtypes_are_joined_is_counted_again(infos: list[Any], keys: list[str], dropped: int) -> None:
    """Two arrays that fit become one column that does not: it is dropped, and what is sent the peer takes."""
    collector = collect(infos)
    columns = collector.columns()
    assert ([column.key for column in columns], collector.dropped) == (keys, dropped)
    assert len(from_proto(to_proto(columns, len(infos)), len(infos))) == len(keys)
    assert [column.key for column in collector.columns()] == keys


def test_numpy_booleans_travel() -> None:
    """Gymnasium makes objects of them; they are booleans all the same."""
    (column,) = collect([{"a": np.bool_(True)}]).columns()
    assert (column.data.dtype, column.data.tolist()) == (np.dtype(bool), [True])


def test_arrays_are_copied() -> None:
    """An environment goes on writing into its own array."""
    array = np.zeros(2)
    collector = collect([{"a": array}])
    array[:] = 7
    assert collector.columns()[0].data.tolist() == [[0.0, 0.0]]


def cyclic() -> dict[str, Any]:
    info: dict[str, Any] = {"a": 1}
    info["self"] = info
    return info


class Unfriendly:
    def __len__(self) -> int:
        raise RuntimeError("do not ask")

    __eq__ = __hash__ = __bool__ = __str__ = __repr__ = __array__ = __len__  # type: ignore[assignment]


HOSTILE: list[tuple[str, Any, int, int]] = [  # name, info, columns that travel, entries dropped
    ("strings and objects", {"s": "text", "b": b"x", "n": None, "o": Unfriendly(), "l": [1], "t": (1, 2)}, 0, 6),
    ("odd numbers", {"c": 1j, "big": 1 << 64, "huge": -(1 << 70), "ld": np.longdouble(1), "c8": np.complex64(1)}, 0, 5),
    ("odd arrays", {"o": np.array([None]), "s": np.array(["a"]), "d": np.array(["2020"], "M8[D]")}, 0, 3),
    ("odd keys", {1: 1, None: 2, float("nan"): 3, "": 4, "\ud800": 5, "k" * (MAX_KEY + 1): 6, "ok": 7}, 1, 6),
    ("a big array", {"a": np.zeros(MAX_INFO_BYTES + 1, np.uint8), "b": 1}, 1, 1),
    ("many arrays", {str(i): np.zeros(1000, np.uint8) for i in range(10)}, 4, 6),
    ("many keys", {f"k{i}": 1 for i in range(100_000)}, MAX_ENTRIES, 100_000 - MAX_ENTRIES),
    ("one key in two ways", {"a": {"b": 1}, "a/b": 2}, 1, 1),
    ("deep", {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": 1}}}}}}}}}}, 0, 1),
]


@pytest.mark.parametrize(("info", "columns", "dropped"), [case[1:] for case in HOSTILE], ids=[c[0] for c in HOSTILE])
def test_hostile_infos_are_dropped_and_counted(info: dict[Any, Any], columns: int, dropped: int) -> None:
    """What cannot travel is counted, and what can travels beside it."""
    collector = collect([info])
    found = collector.columns()
    assert (len(found), collector.dropped) == (columns, dropped)
    assert sum(column.data[0].nbytes + len(column.key) for column in found) <= MAX_INFO_BYTES


def test_an_info_that_contains_itself_ends() -> None:
    """Nesting is cut at a depth, and everything at a number of entries."""
    collector = collect([cyclic()])
    assert collector.dropped > 0
    assert len(collector.columns()) < 20


def test_a_shape_that_differs_from_the_others_is_dropped() -> None:
    """A column has one shape: that of the first row that has it."""
    collector = collect([{"a": np.zeros(2)}, {"a": np.zeros(3)}, {"a": 1.0}, {"a": np.ones(2)}])
    (column,) = collector.columns()
    assert (column.rows.tolist(), collector.dropped) == ([0, 3], 2)


def test_the_cap_is_per_slot() -> None:
    """Every slot has its own room."""
    collector = collect([{"a": np.zeros(4000, np.uint8)}] * 3)
    assert collector.columns()[0].data.shape == (3, 4000)
    assert collector.dropped == 0


def test_discarding_takes_back_one_row() -> None:
    """Columns that only that row had disappear."""
    collector = collect([{"a": 1, "b": 2}, {"a": 3, "c": 4}])
    collector.discard(1)
    assert {column.key: column.data.tolist() for column in collector.columns()} == {"a": [1], "b": [2]}


def test_skipped_keys_are_neither_sent_nor_counted() -> None:
    """Masks travel elsewhere; only at the top."""
    collector = InfoCollector()
    collector.add(0, {"action_mask": np.ones(3), "n": {"action_mask": 1}}, frozenset({"action_mask"}))
    assert [column.key for column in collector.columns()] == ["n/action_mask"]
    assert collector.dropped == 0
