"""Windows of columns against a slow walk from every row."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.buffers.windows import NOWHERE, Columns, Windows, open_rows, windows_of

KINDS = ("goes on", "terminated", "truncated", "void")
SCRIPTS = st.lists(st.sampled_from(KINDS + ("goes on",) * 5), min_size=1, max_size=14)


def columns_of(scripts: list[list[str]]) -> Columns:
    """Slots of equal length; positions are 2, 4, 6, ..., and what follows an end stands one behind it."""
    num_rows = min(map(len, scripts))
    kinds = np.array([script[:num_rows] for script in scripts]).T
    at = np.broadcast_to(2 + 2 * np.arange(num_rows)[:, None], kinds.shape)
    void = kinds == "void"
    numbers = np.arange(kinds.size).reshape(kinds.shape)
    return Columns(
        valid=~void,
        stop=np.isin(kinds, ("terminated", "truncated")),
        reward=np.where(void, np.nan, numbers % 4 - 1.0),
        at=np.where(void, -9, at),
        after=np.where(kinds == "truncated", at + 1, NOWHERE),
        value=np.where(void, np.nan, numbers % 6).astype(np.float32),
        q_taken=np.where(void, np.nan, numbers % 3).astype(np.float32),
    )


def slow(rows: Columns, t: int, b: int, n_step: int, gamma: float) -> tuple[float, int, int, float] | None:
    """Reward, length, position and value that row t's window leads to; None: nobody knows yet, or ever."""
    reward = 0.0
    for i in range(n_step):
        if t + i == len(rows.valid) or not rows.valid[t + i, b]:
            return None
        reward += gamma**i * rows.reward[t + i, b]
        if rows.stop[t + i, b]:
            return reward, i + 1, int(rows.after[t + i, b]), float(rows.value[t + i, b])
    if t + n_step == len(rows.valid) or not rows.valid[t + n_step, b]:
        return None
    return reward, n_step, int(rows.at[t + n_step, b]), float(rows.value[t + n_step, b])


def listed(found: Windows) -> dict[tuple[int, int], tuple[float, int, int, float]]:
    return {
        (t, b): (found.reward[t, b], found.length[t, b], found.after[t, b], found.value[t, b])
        for t, b in np.argwhere(found.complete).tolist()
    }


@given(st.lists(SCRIPTS, min_size=1, max_size=3), st.integers(1, 6))
def test_every_window_is_as_enumerated(scripts: list[list[str]], n_step: int) -> None:
    """Complete or not, what it earned, how long it is and where it leads: for any ends and holes."""
    rows = columns_of(scripts)
    found = listed(windows_of(rows, n_step, 0.5))
    for t, b in np.ndindex(*rows.valid.shape):
        wanted = slow(rows, t, b, n_step, 0.5) if rows.valid[t, b] else None
        assert found.get((t, b)) == wanted


def test_the_golden_sum() -> None:
    """Rewards 1, 2, 3, then a value of 10, at γ = .99."""
    rows = columns_of([["goes on"] * 4])
    rows.reward[:, 0], rows.value[:, 0] = [1.0, 2.0, 3.0, 99.0], [0.0, 0.0, 0.0, 10.0]
    found = windows_of(rows, 3, 0.99)
    assert found.complete[:, 0].tolist() == [True, False, False, False]
    assert found.reward[0, 0] + 0.99 ** found.length[0, 0] * found.value[0, 0] == pytest.approx(15.62329, abs=1e-9)


def test_two_slots_never_mix() -> None:
    """Whatever happens to one column, the other's windows are as they were alone."""
    one, other = ["goes on", "terminated", "goes on", "void", "goes on"], ["goes on"] * 5
    both, alone = listed(windows_of(columns_of([one, other]), 2, 0.5)), columns_of([one, other])
    alone.reward[:, 0] = 1e6
    assert {key: value for key, value in listed(windows_of(alone, 2, 0.5)).items() if key[1] == 1} == {
        key: value for key, value in both.items() if key[1] == 1
    }


@given(st.lists(SCRIPTS, min_size=1, max_size=3), st.integers(1, 5), st.sets(st.integers(1, 13)))
def test_columns_may_be_cut_anywhere(scripts: list[list[str]], n_step: int, cuts: set[int]) -> None:
    """Piece by piece, each with the open rows before it: every window is found once, as in one piece."""
    rows = columns_of(scripts)
    num_rows, num_slots = rows.valid.shape
    wanted = {rows.at[t, b]: window for (t, b), window in listed(windows_of(rows, n_step, 0.5)).items() if b == 0}
    found: dict[int, tuple[float, int, int, float]] = {}
    tail = Columns.empty(n_step, num_slots)
    starts = sorted({0, *(cut for cut in cuts if cut < num_rows), num_rows})
    for start, stop in itertools.pairwise(starts):
        piece = Columns(*(getattr(rows, field.name)[start:stop] for field in dataclasses.fields(rows)))
        joined = tail.followed_by(piece)
        windows = windows_of(joined, n_step, 0.5)
        new = {joined.at[t, b]: window for (t, b), window in listed(windows).items() if b == 0}
        assert not new.keys() & found.keys()
        found |= new
        tail = open_rows(joined, windows, n_step)
    assert found == wanted
