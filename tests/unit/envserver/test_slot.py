"""One slot: what counts as a reward, and what closing a broken environment may cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrl.wire.flags import RowState
from envserver.gym_spec import BadValue
from envserver.slot import Slot, as_reward
from envserver.slot_keeper import SlotKeeper
from tests.unit.envserver import zoo


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (1, 1.0),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.int8(-1), -1.0),
        (np.bool_(True), 1.0),
        (np.inf, np.inf),
        (np.array(2.5), 2.5),
        (np.array([3]), 3.0),
        (np.array([[4.0]]), 4.0),
    ],
)
def test_numbers_are_rewards(reward: Any, expected: float) -> None:
    """Python's and NumPy's, and arrays of one element."""
    assert as_reward(reward) == expected


@pytest.mark.parametrize(
    "reward", ["1", None, 1j, np.complex64(1), [1.0], np.zeros(2), np.zeros(0), np.array(["1"]), np.array([1j])]
)
def test_anything_else_is_no_reward(reward: Any) -> None:
    """What float() would make of a string is nobody's reward."""
    with pytest.raises(BadValue, match="the reward is a"):
        as_reward(reward)


class NeverCloses(zoo.ScriptedEnv):
    def close(self) -> None:
        raise OSError("no")


def test_a_slot_is_plain_while_it_runs() -> None:
    """Only with an environment, and only between a first observation and an end."""
    slot = Slot(3, 0, SlotKeeper(lambda: 0.0))
    slot.set_state(RowState.RUNNING)
    assert not slot.plain
    slot.install(NeverCloses())
    for state in RowState:
        slot.set_state(state)
        assert slot.plain == (state == RowState.RUNNING)
    slot.set_state(RowState.RUNNING)
    slot.discard()
    assert (slot.env, slot.plain) == (None, False)
    with pytest.raises(RuntimeError, match="no environment"):
        slot.step(0)
    slot.discard()
