"""asyncrl.vector.infos against the merging of Gymnasium's VectorEnv."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.vector import infos as vector_infos
from asyncrl.wire import infos as info_codec
from asyncrl.wire.infos import InfoColumn
from asyncrl.wire.step_rows import EpisodeStats
from envserver.info_columns import InfoCollector

# By key: every environment gives the same type for it, as Gymnasium assumes.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "lives": st.integers(-9, 9),
    "prob": st.floats(-1, 1),
    "flag": st.booleans(),
    "small": st.integers(0, 255).map(np.uint8),
    "vector": st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=3).map(lambda v: np.array(v, np.float32)),
}
FLAT = st.fixed_dictionaries({}, optional=VALUES)
# An empty nested dict has no number that could travel.
INFO = st.tuples(FLAT, st.none() | FLAT.filter(bool)).map(lambda p: p[0] | ({"nested": p[1]} if p[1] else {}))


def oracle(single: list[dict[str, Any]]) -> dict[str, Any]:
    """What Gymnasium makes of these infos."""
    env: VectorEnv[Any, Any, Any] = VectorEnv()
    env.num_envs = len(single)
    merged: dict[str, Any] = {}
    for number, info in enumerate(single):
        merged = env._add_info(merged, info, number)
    return merged


def columns_of(single: list[dict[str, Any]]) -> list[InfoColumn]:
    """What a lane with these slots sends, through the wire."""
    collector = InfoCollector()
    for row, info in enumerate(single):
        collector.add(row, info)
    return info_codec.from_proto(info_codec.to_proto(collector.columns(), len(single)), len(single))


def assert_same_infos(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Equal keys, dtypes, shapes and values, however deep."""
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        if isinstance(value, dict):
            assert_same_infos(ours[key], value)
        else:
            assert ours[key].dtype == value.dtype, key
            np.testing.assert_array_equal(ours[key], value, err_msg=key)


@given(st.lists(INFO, min_size=1, max_size=6), st.integers(0, 6))
@settings(max_examples=200)
def test_columns_merge_as_gymnasium_merges_infos(single: list[dict[str, Any]], cut: int) -> None:
    """However the slots are split into two lanes, keys, masks, dtypes and nesting are Gymnasium's."""
    cut = min(cut, len(single))
    merged: dict[str, Any] = {}
    for begin, part in ((0, single[:cut]), (cut, single[cut:])):
        if part:
            slots = np.arange(begin, begin + len(part))
            vector_infos.add_columns(merged, columns_of(part), slots, len(single))
    assert_same_infos(merged, oracle(single))


def test_final_rows_are_told_as_gymnasium_tells_them() -> None:
    """final_obs is an object array; final_info exists, and is masked, even where the infos are empty."""
    theirs = oracle(
        [{}, {"final_obs": np.ones(2), "final_info": {"a": 1}}, {"final_obs": np.zeros(2), "final_info": {}}]
    )
    ours: dict[str, Any] = {}
    final = vector_infos.add_finals(ours, np.array([1, 2]), [np.ones(2), np.zeros(2)], 3)
    vector_infos.put(final, "a", np.array([1]), np.array([1]), 3)
    assert set(ours) == set(theirs)
    assert ours["final_obs"].dtype == object
    assert ours["final_obs"][0] is None
    np.testing.assert_array_equal(ours["final_obs"][1], [1, 1])
    np.testing.assert_array_equal(ours["_final_obs"], theirs["_final_obs"])
    np.testing.assert_array_equal(ours["_final_info"], theirs["_final_info"])
    assert_same_infos(ours["final_info"], theirs["final_info"])


def test_no_final_rows_leave_no_trace() -> None:
    """A step that ends nothing has no final keys."""
    infos: dict[str, Any] = {}
    vector_infos.add_finals(infos, np.array([], int), [], 3)
    vector_infos.add_lost(infos, np.array([], int), 3)
    assert infos == {}


def test_statistics_of_two_lanes_share_one_table() -> None:
    """Returns, lengths and times stand at the places of their slots, with one mask."""
    infos: dict[str, Any] = {}
    for slots, value in ((np.array([0, 1]), 3.0), (np.array([2, 3]), 5.0)):
        one = np.array([1], np.uint32)
        stats = EpisodeStats(one, np.array([value]), one * 7, np.array([0.5], np.float32))
        vector_infos.add_statistics(infos, stats, slots, 4)
    np.testing.assert_array_equal(infos["episode"]["r"], [0, 3, 0, 5])
    np.testing.assert_array_equal(infos["episode"]["l"], [0, 7, 0, 7])
    np.testing.assert_array_equal(infos["episode"]["t"], [0, 0.5, 0, 0.5])
    np.testing.assert_array_equal(infos["_episode"], [False, True, False, True])


def test_lanes_of_different_dtypes_are_widened() -> None:
    """A column that is an integer in one lane and a float in another keeps both values."""
    infos: dict[str, Any] = {}
    vector_infos.put(infos, "x", np.array([0]), np.array([2**40]), 2)
    vector_infos.put(infos, "x", np.array([1]), np.array([0.5]), 2)
    np.testing.assert_array_equal(infos["x"], [2.0**40, 0.5])


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_values_of_other_shapes_are_left_out(cut: int) -> None:
    """However the slots are split into lanes: the first shape of a key stands, masks name the rows that have it."""
    single: list[dict[str, Any]] = [
        {"a": np.ones(2), "b": 1, "c": {"x": 1}, "d": {"e": {"f": 1}}},
        {"a": np.ones(3), "b": {"x": 2}, "c": 2, "d": {"e": 7}},
        {"b": 3, "c": {"x": 3}, "d": {"e": {"f": 3}}},
    ]
    merged: dict[str, Any] = {}
    for begin, part in ((0, single[:cut]), (cut, single[cut:])):
        if part:
            vector_infos.add_columns(merged, columns_of(part), np.arange(begin, begin + len(part)), 3)
    has = np.array([True, False, True])
    inner = {"x": np.array([1, 0, 3]), "_x": has}
    deep = {"e": {"f": np.array([1, 0, 3]), "_f": has}, "_e": has}
    wanted = {"a": np.array([[1.0, 1], [0, 0], [0, 0]]), "b": np.array([1, 0, 3]), "c": inner, "d": deep}
    assert_same_infos(
        merged, wanted | {"_a": np.array([True, False, False]), "_b": has, "_c": has, "_d": np.array([True] * 3)}
    )


def test_masks_are_int8() -> None:
    """`infos["action_mask"][i]` can be handed to `Discrete.sample` as it is."""
    infos: dict[str, Any] = {}
    vector_infos.add_mask(infos, np.array([1]), np.array([[True, False]]), 2)
    assert infos["action_mask"].dtype == np.int8
    np.testing.assert_array_equal(infos["action_mask"], [[0, 0], [1, 0]])
    np.testing.assert_array_equal(infos["_action_mask"], [False, True])
