"""asyncrl.vector.rows: every kind of row there is, in every autoreset mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from asyncrl.gym_spaces import ValueLayout
from asyncrl.vector.rows import Assembler, LaneBook, LanePart
from asyncrl.wire.flags import CUT, FIRST, NO_TRANSITION, SOFT, TERMINATED, TRUNCATED
from asyncrl.wire.step_rows import StepRows, final_rows_of
from asyncrl.wire.tensors import Array
from envserver.gym_spec import space_spec

SAME, NEXT, OFF = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED
LAYOUT = ValueLayout(space_spec(spaces.Box(-99, 99, (1,))))
BEGUN, WAITING = FIRST | NO_TRANSITION, NO_TRANSITION


def _rows(flags: list[int], obs: list[float], finals: list[float] | None = None) -> StepRows:
    flag_array = np.array(flags, np.uint8)
    rows = StepRows([_column(obs)], np.arange(1.0, len(flags) + 1), flag_array)
    rows.final_rows = final_rows_of(flag_array)
    rows.final_obs = [_column(finals)] if finals else []
    return rows


def _column(values: list[float]) -> Array:
    return np.array(values, np.float32)[:, None]


def _book(obs: list[float]) -> LaneBook:
    book = LaneBook(np.arange(len(obs)), LAYOUT.zeros(len(obs)))
    book.reset(_rows([BEGUN] * len(obs), obs), None)
    return book


def _told(part: LanePart) -> tuple[list[bool], list[bool], list[int], dict[int, float]]:
    finals = part.final_obs[0][:, 0].tolist() if len(part.final_rows) else []
    pairs = dict(zip(part.final_rows.tolist(), finals, strict=True))
    return part.terminated.tolist(), part.truncated.tolist(), part.lost.tolist(), pairs


# one slot, whose observation was 1 and is 5 now: mode, flags, final obs -> terminated, truncated, lost, final obs
ROWS: list[tuple[AutoresetMode, int, list[float], tuple[bool, bool, bool, float | None]]] = [
    *[(mode, 0, [], (False, False, False, None)) for mode in AutoresetMode],
    (SAME, TERMINATED | FIRST, [4], (True, False, False, 4)),
    (SAME, TRUNCATED | FIRST, [4], (False, True, False, 4)),
    (SAME, TERMINATED | FIRST | SOFT, [], (True, False, False, 5)),
    (SAME, TRUNCATED | FIRST | SOFT, [], (False, True, False, 5)),
    (SAME, TERMINATED, [], (True, False, False, 5)),  # its environment could not be reset
    (NEXT, TERMINATED, [], (True, False, False, None)),
    (OFF, TRUNCATED, [], (False, True, False, None)),
    (SAME, CUT | NO_TRANSITION, [], (False, True, True, 1)),
    (SAME, CUT | FIRST | NO_TRANSITION, [], (False, True, True, 1)),
    (NEXT, CUT | NO_TRANSITION, [], (False, True, True, None)),
    (NEXT, CUT | FIRST | NO_TRANSITION, [], (False, True, True, None)),
    (OFF, CUT | NO_TRANSITION, [], (False, True, True, None)),
]


@pytest.mark.parametrize(("mode", "flags", "finals", "wanted"), ROWS)
def test_rows_are_told_as_the_mode_has_them(
    mode: AutoresetMode, flags: int, finals: list[float], wanted: tuple[bool, bool, bool, float | None]
) -> None:
    """Flags of the wire as Gymnasium's; a lost row is truncated, and its reward is 0."""
    part = _book([1]).step(_rows([flags], [5], finals), mode)
    terminated, truncated, lost, final = wanted
    pairs = {} if final is None else {0: final}
    assert _told(part) == ([terminated], [truncated], [0] if lost else [], pairs)
    assert part.rewards.tolist() == [0.0 if lost else 1.0]


def test_a_lost_lane_is_truncated_until_its_replacement_has_arrived() -> None:
    """Rows repeat the last observation; the first of the replacement is a lost row, the next an ordinary one."""
    book = _book([1, 2])
    for _ in range(2):
        part = book.step(None, SAME)
        assert _told(part) == ([False, False], [True, True], [0, 1], {0: 1.0, 1: 2.0})
        np.testing.assert_array_equal(part.obs[0], _column([1, 2]))
        assert part.rewards.tolist() == [0, 0]
    part = book.step(_rows([CUT | BEGUN] * 2, [7, 8]), SAME)
    assert _told(part) == ([False, False], [True, True], [0, 1], {0: 1.0, 1: 2.0})
    np.testing.assert_array_equal(part.obs[0], _column([7, 8]))
    assert _told(book.step(_rows([0, 0], [9, 9]), SAME)) == ([False] * 2, [False] * 2, [], {})


def test_a_slot_that_is_created_anew_is_lost_until_it_is_there() -> None:
    """Waiting rows and the first row are lost; its neighbour steps."""
    book = _book([1, 2])
    for flags, obs in ((CUT | NO_TRANSITION, 1), (WAITING, 1), (BEGUN, 6)):
        part = book.step(_rows([flags, 0], [obs, 3]), SAME)
        assert _told(part) == ([False, False], [True, False], [0], {0: 1.0})
        assert part.rewards.tolist() == [0, 2]
    assert _told(book.step(_rows([0, 0], [7, 3]), SAME))[2] == []


def test_the_reset_of_next_step_is_no_loss() -> None:
    """After an end of its own a first row is Gymnasium's reset row; out of nowhere it is a lost one."""
    book = _book([1, 2])
    book.step(_rows([TERMINATED, 0], [3, 3]), NEXT)
    part = book.step(_rows([BEGUN, BEGUN], [4, 4]), NEXT)
    assert _told(part) == ([False, False], [False, True], [1], {})


def test_a_late_answer_of_a_lane_given_up_is_no_transition() -> None:
    """Rows without FIRST behind lost ones are lost too: nobody saw what they follow."""
    book = _book([1])
    book.step(None, SAME)
    assert _told(book.step(_rows([0], [2]), SAME)) == ([False], [True], [0], {0: 1.0})
    assert _told(book.step(_rows([0], [3]), SAME)) == ([False], [False], [], {})


def test_resets_tell_what_could_not_be_reset() -> None:
    """A masked reset leaves the other rows as they were; what has no environment, or one that raised, is lost."""
    book = _book([1, 2])
    mask = np.array([True, False])
    assert _told(book.reset(_rows([BEGUN, WAITING], [5, 2]), mask)) == ([False] * 2, [False] * 2, [], {})
    assert _told(book.reset(_rows([WAITING, WAITING], [5, 2]), mask))[2] == [0]
    assert _told(book.reset(None, None))[2] == [0, 1]
    part = book.untouched()
    assert _told(part)[2] == []
    np.testing.assert_array_equal(part.obs[0], _column([5, 2]))


def test_a_masked_reset_of_a_replaced_lane_tells_of_the_other_rows() -> None:
    """Their episodes are gone with their environments: marked now, and ended by the next step; not longer than that."""
    book = _book([1, 2])
    mask = np.array([True, False])
    part = book.reset(_rows([BEGUN, BEGUN], [5, 6]), mask, replaced=True)
    assert _told(part) == ([False] * 2, [False] * 2, [1], {})
    assert _told(book.step(_rows([0, 0], [7, 8]), OFF)) == ([False] * 2, [False, True], [1], {})
    assert _told(book.reset(_rows([BEGUN, BEGUN], [5, 6]), ~mask)) == ([False] * 2, [False] * 2, [], {})
    assert _told(book.step(_rows([0, 0], [7, 8]), OFF)) == ([False] * 2, [False] * 2, [], {})


def test_parts_join_in_their_order() -> None:
    """Arrays of two lanes, and finals of both in one object array, at the places of their slots."""
    books = [_book([1, 2]), _book([3])]
    books[1].slots = np.array([2])
    assembler = Assembler(LAYOUT, 0, statistics=True)
    parts = [
        books[0].step(_rows([0, TERMINATED | FIRST], [4, 5], [9]), SAME),
        books[1].step(_rows([TRUNCATED | FIRST], [6], [8]), SAME),
    ]
    obs, rewards, terminated, truncated, infos = assembler.step(parts, 3)
    np.testing.assert_array_equal(obs, _column([4, 5, 6]))
    assert rewards.tolist() == [1, 2, 1]
    assert rewards.dtype == np.float64
    assert terminated.tolist() == [False, True, False]
    assert truncated.tolist() == [False, False, True]
    assert infos["_final_obs"].tolist() == [False, True, True]
    assert [None if value is None else value.tolist() for value in infos["final_obs"]] == [None, [9], [8]]
    assert infos["final_info"] == {}


def test_masks_are_void_where_a_row_waits() -> None:
    """A lost slot has no mask; a masked reset tells that of the rows which it reset."""
    book = _book([1, 2])
    rows = _rows([CUT | NO_TRANSITION, 0], [1, 3])
    rows.mask = np.array([[True, True], [True, False]])
    assembler = Assembler(LAYOUT, 2, statistics=False)
    infos: dict[str, Any] = assembler.step([book.step(rows, SAME)], 2)[4]
    assert infos["_action_mask"].tolist() == [False, True]
    assert infos["action_mask"].tolist() == [[0, 0], [1, 0]]
    only = np.array([True, False])
    again = _rows([BEGUN, WAITING], [1, 3])
    again.mask = rows.mask
    infos = assembler.infos([book.reset(again, only)], 2, only)
    assert infos["_action_mask"].tolist() == [True, False]
