"""Batches against what went in: every row by its name, and slots against a walk over single rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.buffers.gathering import Gathering, slots_of
from asyncrl.buffers.staleness import Staleness
from asyncrl.records import Array, Unroll
from tests.unit.buffers.unrolls import an_unroll


def named(lane: int, number: int, num_slots: int, valid: Array | None = None) -> Unroll:
    """Three steps; slot, and `t` counting on from unroll to unroll, name every row."""
    unroll = an_unroll(lane, number, 3, num_slots)
    unroll.t = np.repeat(np.arange(3 * number, 3 * number + 3)[:, None], num_slots, axis=1)
    unroll.fleet_slots = np.arange(num_slots) + 100 * lane
    if valid is not None:
        unroll.valid = valid
    return unroll


def rows_of(unrolls: list[Unroll]) -> dict[int, list[int]]:
    """By fleet slot, the `t` of its valid rows in the order of the batch."""
    found: dict[int, list[int]] = {}
    for unroll in unrolls:
        for column, slot in enumerate(unroll.fleet_slots.tolist()):
            found.setdefault(slot, []).extend(unroll.t[unroll.valid[:, column], column].tolist())
    return found


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2**15 - 1)), max_size=12),
    st.integers(1, 30),
    st.lists(st.integers(1, 5), min_size=3, max_size=3),
)
def test_every_step_is_in_one_batch(came: list[tuple[int, int]], batch_steps: int, widths: list[int]) -> None:
    """Lanes of one to five slots, with any rows void: what came out, batch after batch, is what went in, by slot."""
    gathering = Gathering(batch_steps, Staleness(None))
    numbers = [0, 0, 0]
    expected: list[Unroll] = []
    batches: list[Unroll] = []
    for lane, bits in came:
        valid = np.array([bits >> k & 1 for k in range(3 * widths[lane])], np.bool_).reshape(3, widths[lane])
        gathering.add([named(lane, numbers[lane], widths[lane], valid)])
        expected.append(named(lane, numbers[lane], widths[lane], valid.copy()))
        numbers[lane] += 1
        while (batch := gathering.batch(0)) is not None:
            assert batch_steps <= sum(unroll.num_valid for unroll in batch) < batch_steps + 3
            batches += batch
    found, wanted = rows_of(batches), rows_of(expected)
    for slot, rows in wanted.items():
        assert found.get(slot, []) == rows[: len(found.get(slot, []))]
    left = sum(map(len, wanted.values())) - sum(map(len, found.values()))
    assert 0 <= left < batch_steps


@pytest.mark.parametrize("widths", [[8], [1] * 8, [5, 3], [2, 6]])
def test_batches_are_of_one_size_whatever_the_lanes_are(widths: list[int]) -> None:
    """Eight slots of three steps in one lane or in eight: batches of six steps, four a turn of the fleet."""
    gathering = Gathering(6, Staleness(None))
    sizes = []
    for number in range(5):
        for lane, width in enumerate(widths):
            gathering.add([named(lane, number, width)])
        while (batch := gathering.batch(0)) is not None:
            sizes.append(sum(unroll.num_valid for unroll in batch))
    assert sizes == [6] * 20


def test_what_waits_grows_older() -> None:
    """Half of an unroll of version 0 goes into the batch of version 2; by version 3 the other half is too old."""
    staleness = Staleness(2)
    gathering = Gathering(6, staleness)
    gathering.add([named(0, 0, 4)])
    first = gathering.batch(2)
    assert first is not None
    assert [unroll.fleet_slots.tolist() for unroll in first] == [[0, 1]]
    assert gathering.batch(3) is None
    assert staleness.counts.steps_dropped == 6
    assert dict(staleness.counts.lags) == {2: 6}


def test_slots_are_cut_out_whole() -> None:
    """Every field of slot 1 and 2 of four, against the same row of the whole; ends are renumbered."""
    rng = np.random.default_rng(0)
    whole = an_unroll(0, 0, 5, 4)
    whole.truncated = rng.random((5, 4)) < 0.5
    whole.end_rows = np.argwhere(whole.truncated)
    whole.end_obs = [rng.normal(size=(len(whole.end_rows), 2))]
    whole.end_mask = rng.random((len(whole.end_rows), 3)) < 0.5
    whole.mask, whole.last_mask = rng.random((5, 4, 3)) < 0.5, rng.random((4, 3)) < 0.5
    whole.kept, whole.carry = [rng.normal(size=(5, 4))], [rng.normal(size=(4, 2))]
    by_row = ["log_prob", "value", "reward", "incarnation", "episode", "t"]
    for name in by_row:
        setattr(whole, name, rng.normal(size=(5, 4)))
    for name in ("first", "terminated", "cut", "soft", "valid"):
        setattr(whole, name, rng.random((5, 4)) < 0.5)
    whole.obs, whole.action = [rng.normal(size=(5, 4, 2))], [rng.normal(size=(5, 4))]
    whole.last_obs, whole.last_first = [rng.normal(size=(4, 2))], rng.random(4) < 0.5
    found = slots_of(whole, 1, 3)
    by_slot = {"carry", "last_obs", "last_mask", "last_first", "fleet_slots"}
    ends = [index for index, (_, slot) in enumerate(whole.end_rows.tolist()) if slot in (1, 2)]
    for field in dataclasses.fields(Unroll):
        was, now = getattr(whole, field.name), getattr(found, field.name)
        if field.name in ("lane", "round", "version"):
            assert np.array_equal(was, now)
        elif field.name == "end_rows":
            assert now.tolist() == [[was[index, 0], was[index, 1] - 1] for index in ends]
        else:
            for a, b in zip(*(each if isinstance(each, list) else [each] for each in (was, now)), strict=True):
                expected = a[ends] if field.name.startswith("end_") else a[1:3] if field.name in by_slot else a[:, 1:3]
                assert np.array_equal(expected, b), field.name
