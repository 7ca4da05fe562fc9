"""Which stacks follow, against a comparison of each with the one before."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.buffers import stacks
from asyncrl.buffers.stacks import Follows, follows
from asyncrl.records import Array, Unroll
from tests.unit.buffers.stories import DEPTH, a_story


def moved(older: Array, newer: Array) -> bool:
    return older[1:].tobytes() == newer[:-1].tobytes()


def with_stacks(unroll: Unroll, dtype: str) -> Unroll:
    """The same frames in another dtype."""

    def cast(leaves: list[Array]) -> list[Array]:
        return [leaves[0].astype(dtype), leaves[1]]

    return dataclasses.replace(
        unroll, obs=cast(unroll.obs), end_obs=cast(unroll.end_obs), last_obs=cast(unroll.last_obs)
    )


@settings(max_examples=60)
@given(
    st.integers(0, 500),
    st.integers(1, 12),
    st.sampled_from(["u1", "f4", "f8", "u2"]),
    st.sampled_from([1, 64, 1 << 18]),
)
def test_a_stack_follows_where_it_is_moved_by_one_frame(seed: int, num_rows: int, dtype: str, piece: int) -> None:
    """Rows, ends and what was observed last, however many rows are compared at once."""
    (unroll,) = a_story(seed, num_rows, [0, 1], 0.3).unrolls([])
    unroll = with_stacks(unroll, dtype)
    obs, end_rows = unroll.obs[0], {(t, b) for t, b in unroll.end_rows.tolist()}
    before = np.stack([obs[0, 0, :-1], obs[0, 1, 1:]])  # of slot 0 what row 0 follows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stacks, "PIECE", piece)
        found = follows(unroll, 0, before, np.ones(2, np.bool_))
    for t, b in np.argwhere(unroll.valid).tolist():
        if t == 0:
            wanted = before[b].tobytes() == obs[0, b, :-1].tobytes()
        else:
            wanted = bool(unroll.valid[t - 1, b]) and (t - 1, b) not in end_rows and moved(obs[t - 1, b], obs[t, b])
        assert found.own[t, b] == wanted
    for i, (t, b) in enumerate(unroll.end_rows.tolist()):
        assert found.end[i] == moved(obs[t, b], unroll.end_obs[0][i])
    for b in range(2):
        assert found.head[b] == moved(obs[-1, b], unroll.last_obs[0][b])


def test_nothing_follows_what_is_not_known() -> None:
    """Even if the bytes happen to be the same."""
    (unroll,) = a_story(1, 3, [0, 1], 0.0).unrolls([])
    found = follows(unroll, 0, unroll.obs[0][0, :, :-1], np.array([True, False]))
    assert found.own[0].tolist() == [True, False]


def test_minus_zero_is_not_zero() -> None:
    """Bits are compared, so that NaN follows NaN and what is rebuilt is what it was."""
    (unroll,) = a_story(1, 2, [0], 0.0).unrolls([])
    obs = np.full((2, 1, DEPTH, 1, 2), np.nan)
    unroll = dataclasses.replace(unroll, obs=[obs], end_obs=[obs[0, :0]], last_obs=[obs[0]])
    assert follows(unroll, 0, obs[0, :, :-1], np.ones(1, np.bool_)).own.all()
    obs[0, 0, 1], obs[1, 0, 0] = 0.0, -0.0
    assert not follows(unroll, 0, obs[0, :, :-1], np.ones(1, np.bool_)).own[1]


def test_without_stacks_everything_follows() -> None:
    """Nothing has to stand before a row."""
    (unroll,) = a_story(2, 9, [0, 1], 0.5).unrolls([])
    found = Follows.everywhere(unroll)
    assert found.own.all()
    assert found.own.shape == unroll.valid.shape
    assert found.end.all()
    assert found.end.shape == (len(unroll.end_rows),)
    assert found.head.all()
    assert found.head.shape == (2,)
