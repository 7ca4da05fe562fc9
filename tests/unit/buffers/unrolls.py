"""Small unrolls for the tests of what they pass through."""

from __future__ import annotations

import numpy as np

from asyncrl.records import Unroll


def an_unroll(lane: int = 0, number: int = 0, num_steps: int = 3, num_slots: int = 2) -> Unroll:
    """Every row valid, no ends; rewards are numbers of their own."""
    shape = (num_steps, num_slots)
    falses, names = np.zeros(shape, np.bool_), np.zeros(shape, np.int64)
    return Unroll(
        lane=lane,
        round=number,
        fleet_slots=np.arange(num_slots) + lane * num_slots,
        obs=[np.zeros((*shape, 2), np.float32)],
        action=[np.zeros(shape, np.int64)],
        mask=None,
        log_prob=np.zeros(shape, np.float32),
        value=np.zeros(shape, np.float32),
        first=falses.copy(),
        version=np.zeros(num_steps, np.int64),
        reward=np.arange(num_steps * num_slots, dtype=np.float64).reshape(shape) + 1000.0 * number,
        terminated=falses.copy(),
        truncated=falses.copy(),
        cut=falses.copy(),
        soft=falses.copy(),
        valid=~falses,
        end_rows=np.zeros((0, 2), np.int64),
        end_obs=[np.zeros((0, 2), np.float32)],
        last_obs=[np.zeros((num_slots, 2), np.float32)],
        last_mask=None,
        last_first=np.zeros(num_slots, np.bool_),
        carry=[],
        incarnation=names,
        episode=names,
        t=names,
    )
