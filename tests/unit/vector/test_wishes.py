"""asyncrl.vector.wishes: arguments of reset, and their split over lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrl.gym_spaces import ActionError
from asyncrl.vector.wishes import ResetWish, whole_lanes


@pytest.mark.parametrize(
    ("seed", "wanted"),
    [
        (None, None),
        (7, [7, 8, 9]),
        (np.int64(7), [7, 8, 9]),
        ([1, None, 3], [1, None, 3]),
        (np.array([4, 5, 6]), [4, 5, 6]),
    ],
)
def test_seeds_are_read_as_gymnasium_reads_them(seed: Any, wanted: list[int | None] | None) -> None:
    """An int counts up from slot 0; a sequence is taken as it is."""
    assert ResetWish.of(seed, None, 3).seeds == wanted


def test_the_callers_options_stay_as_they_are() -> None:
    """The mask is taken out of a copy; what is left travels."""
    mask = np.array([True, False])
    options = {"reset_mask": mask, "level": 3}
    wish = ResetWish.of(None, options, 2)
    assert wish.mask is mask
    assert wish.options == {"level": 3}
    assert options == {"reset_mask": mask, "level": 3}


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ([True, False], TypeError),
        (np.array([1, 0]), TypeError),
        (np.array([True]), ValueError),
        (np.array([[True, False]]), ValueError),
        (np.array([False, False]), ValueError),
    ],
)
def test_masks_are_checked_as_gymnasium_checks_them(mask: Any, error: type[Exception]) -> None:
    """The same kinds of error for the same mistakes."""
    with pytest.raises(error, match="reset_mask"):
        ResetWish.of(None, {"reset_mask": mask}, 2)


def test_wrong_numbers_of_seeds_are_refused() -> None:
    """The text is Gymnasium's."""
    with pytest.raises(ValueError, match="must match num_envs=3 but got length=2"):
        ResetWish.of([1, 2], None, 3)


def test_lanes_without_masked_rows_are_left_alone() -> None:
    """Each lane gets its slice of mask and seeds, or nothing at all."""
    wish = ResetWish.of(5, {"reset_mask": np.array([False, True, False, False])}, 4)
    part = wish.part(0, 2)
    assert part is not None
    assert part.mask is not None
    assert part.mask.tolist() == [False, True]
    assert part.seeds == [5, 6]
    assert wish.part(2, 4) is None
    whole = ResetWish.of(None, None, 4).part(2, 4)
    assert whole == (None, None, None)


def test_ids_have_to_be_those_of_whole_lanes() -> None:
    """In any order; parts of lanes, doubles and strangers are refused."""
    lane_of = np.array([0, 0, 1, 1, 1])
    assert whole_lanes(np.array([1, 0]), lane_of) == [0]
    assert whole_lanes(np.array([4, 0, 3, 1, 2]), lane_of) == [0, 1]
    for ids in ([0], [2, 3], [0, 0], [0, 1, 1]):
        with pytest.raises(ActionError, match="part of a lane"):
            whole_lanes(np.array(ids), lane_of)
    for strange in (np.array([0, 5]), np.array([-1, 0]), np.array([]), np.array([0.0, 1.0]), np.array([[0, 1]])):
        with pytest.raises(ActionError, match="below 5"):
            whole_lanes(strange, lane_of)
