"""The arrays of one reply, filled row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from asyncrl.wire.spec import MAX_MASK_SIZE, LaneSpec
from envserver.gym_spec import BadValue, mask_size, space_spec
from envserver.row_buffers import RowBuffers

BOX = spaces.Box(-9, 9, (2,), np.float32)


def rows_of(num_slots: int = 3, action: Any = None) -> RowBuffers:
    action = spaces.Discrete(3) if action is None else action
    spec = LaneSpec("x", space_spec(BOX), space_spec(action), mask_size=mask_size(action))
    rows = RowBuffers(spec, BOX, num_slots)
    rows.begin(keep_masks=False)
    return rows


def test_masks_appear_with_the_first_and_reset_each_step() -> None:
    """Without any, all actions are allowed and nothing is sent; with one, rows that say nothing allow all."""
    rows = rows_of()
    assert rows.rows(None).mask is None
    rows.add_info(1, {"action_mask": np.array([0, 1, 0], np.int8)})
    for _ in range(2):
        mask = rows.rows(None).mask
        assert mask is not None
        assert mask.tolist() == [[True] * 3, [False, True, False], [True] * 3]
        rows.begin(keep_masks=True)
    rows.begin(keep_masks=False)
    mask = rows.rows(None).mask
    assert mask is not None
    assert mask.all()


def test_masks_of_spaces_that_have_none_are_infos() -> None:
    """A Box has no choices to mask; what is called action_mask there is an info like any other."""
    rows = rows_of(action=BOX)
    rows.add_info(0, {"action_mask": np.ones(2)})
    assert [column.key for column in rows.rows(None).infos] == ["action_mask"]


@pytest.mark.parametrize(
    "action", [spaces.Discrete(MAX_MASK_SIZE + 1), spaces.MultiDiscrete([MAX_MASK_SIZE, 1])], ids=["one", "many"]
)
def test_a_mask_that_is_too_wide_to_travel_is_a_fault(action: spaces.Space[Any]) -> None:
    """Without one such a space is served; a mask would be lost, and illegal actions be played: its text says so."""
    rows = rows_of(action=action)
    rows.add_info(0, {"other": 1})
    with pytest.raises(BadValue, match="of 1048577 actions; 1048576 are possible"):
        rows.add_info(1, {"action_mask": np.ones(MAX_MASK_SIZE + 1, np.int8)})


@pytest.mark.parametrize("mask", [np.ones(2), np.ones(3), np.array(["a"] * 3), None, np.zeros((3, 0), bool)])
def test_bad_masks_are_refused(mask: Any) -> None:
    """A width or dtype that is not the action's."""
    with pytest.raises(BadValue, match="action_mask"):
        rows_of().add_info(0, {"action_mask": mask})


@pytest.mark.parametrize("player", [True, 1.0, "1", None, np.bool_(True)])
def test_bad_players_are_refused(player: Any) -> None:
    """Whose turn it is, is an integer."""
    with pytest.raises(BadValue, match="to_play"):
        rows_of().add_info(0, {"to_play": player})


def test_a_withdrawn_final_becomes_the_observation() -> None:
    """Of the last row only; the finals before it stay, and infos go with them."""
    rows = rows_of()
    rows.add_final(0, np.array([1, 1], np.float32), {"a": 1})
    rows.add_final(2, np.array([2, 2], np.float32), {"a": 2})
    rows.withdraw_final(2)
    reply = rows.rows(None)
    assert reply.obs[0].tolist() == [[0, 0], [0, 0], [2, 2]]
    assert (reply.final_rows.tolist(), reply.final_obs[0].tolist()) == ([0], [[1, 1]])
    assert [column.rows.tolist() for column in reply.final_infos] == [[0]]
    rows.begin(keep_masks=False)
    assert not len(rows.rows(None).final_rows)


def test_drops_of_both_kinds_are_summed() -> None:
    """Infos and final infos share one counter."""
    rows = rows_of()
    rows.add_info(0, {"a": "text"})
    rows.add_final(1, np.zeros(2, np.float32), {"b": object(), "c": None})
    assert rows.rows(None).infos_dropped == 3


@pytest.mark.parametrize("info", [[1], "text", 5])
def test_infos_that_are_no_dicts_are_refused(info: Any) -> None:
    """In both places."""
    with pytest.raises(BadValue, match="the info is a"):
        rows_of().add_info(0, info)
    with pytest.raises(BadValue, match="the info is a"):
        rows_of().add_final(0, np.zeros(2, np.float32), info)
