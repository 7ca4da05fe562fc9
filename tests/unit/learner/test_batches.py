"""Batches against the unrolls they are made of."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from asyncrl.config import PPOConfig
from asyncrl.errors import LocalProtocolError
from asyncrl.learner.batches import Stage
from asyncrl.learner.encoders import lies_side_by_side
from asyncrl.records import Unroll
from tests.unit.learner.unrolls import acted, lanes_of, lost_at, model_for

CPU = torch.device("cpu")


def unroll() -> Unroll:
    return acted(model_for(PPOConfig()), num_steps=96, num_envs=6)


def test_rows_side_by_side() -> None:
    """Three lanes of 1, 3 and 2 slots give the batch that one lane of six would give, ends included."""
    whole = unroll()
    one, three = Stage(CPU).load([whole]), Stage(CPU).load(lanes_of(whole, [1, 3, 2]))
    assert len(whole.end_rows) > 3
    for name in ("obs", "action", "carry"):
        for a, b in zip(getattr(one, name), getattr(three, name), strict=True):
            assert torch.equal(a, b)
    for name in ("reward", "log_prob", "value", "version", "valid", "terminated", "ended", "fleet_slots"):
        np.testing.assert_array_equal(getattr(one, name), getattr(three, name), name)
    assert torch.equal(one.first, three.first)
    for batch in (one, three):
        ends = {(int(t), int(n)): obs for (t, n), obs in zip(batch.end_rows, batch.after[0][6:], strict=True)}
        expected = {(int(t), int(n)): obs for (t, n), obs in zip(whole.end_rows, whole.end_obs[0], strict=True)}
        assert ends.keys() == expected.keys()
        for row, obs in ends.items():
            np.testing.assert_array_equal(obs, expected[row])
        np.testing.assert_array_equal(batch.after[0][:6], whole.last_obs[0])


def test_a_lane_without_masks_allows_everything() -> None:
    """Beside one that has some: its rows are as wide, and all allowed."""
    masked, plain = lanes_of(unroll(), [2, 4])
    mask = np.zeros((96, 2, 3), np.bool_)
    mask[..., 1] = True
    batch = Stage(CPU).load([dataclasses.replace(masked, mask=mask), plain])
    assert batch.mask is not None
    assert batch.mask.shape == (96, 6, 3)
    assert torch.equal(batch.mask[:, :2], torch.from_numpy(mask))
    assert batch.mask[:, 2:].all()


def test_images_stay_uint8() -> None:
    """Bytes are bytes on the device, and their rows lie side by side without a copy per minibatch."""
    whole = unroll()
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (96, 6, 4, 8, 8), dtype=np.uint8)
    ends = rng.integers(0, 256, (len(whole.end_rows), 4, 8, 8), dtype=np.uint8)
    batch = Stage(CPU).load([dataclasses.replace(whole, obs=[frames], end_obs=[ends], last_obs=[frames[0]])])
    assert batch.obs[0].dtype == batch.after[0].dtype == torch.uint8
    assert torch.equal(batch.obs[0], torch.from_numpy(frames))


def test_frames_lie_side_by_side() -> None:
    """Frames of two lanes, and those after them, are what they were; their channels are neighbours in memory."""
    whole = unroll()
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (96, 6, 4, 36, 40), dtype=np.uint8)
    ends = rng.integers(0, 256, (len(whole.end_rows), 4, 36, 40), dtype=np.uint8)
    whole = dataclasses.replace(whole, obs=[frames], end_obs=[ends], last_obs=[frames[0]])
    batch = Stage(CPU).load(lanes_of(whole, [2, 4]))
    assert torch.equal(batch.obs[0], torch.from_numpy(frames))
    assert sorted(end.tobytes() for end in batch.after[0][6:].numpy()) == sorted(end.tobytes() for end in ends)
    assert lies_side_by_side(batch.obs[0].flatten(0, 1))
    assert lies_side_by_side(batch.after[0])
    valid = rng.random((96, 6)) > 0.2
    some = dataclasses.replace(whole, valid=valid, end_rows=whole.end_rows[:0], end_obs=[ends[:0]])
    expected = frames * valid[:, :, None, None, None]
    assert torch.equal(Stage(CPU).load([some]).obs[0], torch.from_numpy(expected))


@pytest.mark.parametrize("dtype", ["u2", "u4", "u8", "i1", "f8", "f2", "b1"])
def test_every_dtype_of_the_wire_is_kept(dtype: str) -> None:
    """No leaf is converted before the network; void rows can be zeroed in all of them."""
    whole = unroll()
    leaf = np.ones((96, 6, 2), dtype)
    lost = lost_at(whole, 20, [5])
    batch = Stage(CPU).load(
        [dataclasses.replace(lost, obs=[leaf], end_obs=[leaf[0, :1].repeat(len(lost.end_rows), 0)], last_obs=[leaf[0]])]
    )
    expected = np.where(lost.valid[..., None], leaf, np.zeros_like(leaf))
    np.testing.assert_array_equal(batch.obs[0].numpy(), expected)
    assert batch.obs[0].numpy().dtype == dtype


def test_void_rows_are_zeros() -> None:
    """NaN in rows without a transition reaches neither the device nor the returns, and their flags say nothing."""
    lost = lost_at(unroll(), 20, [1, 4])
    everywhere = ~lost.valid
    flags = {name: getattr(lost, name) | everywhere for name in ("terminated", "truncated", "first")}
    batch = Stage(CPU).load([dataclasses.replace(lost, **flags)])
    assert torch.isfinite(batch.obs[0]).all()
    for array in (batch.reward, batch.log_prob, batch.value):
        assert np.isfinite(array).all()
    for flag in (batch.terminated, batch.ended, batch.first.numpy()):
        assert not flag[everywhere].any()
    assert batch.ended[20, [1, 4]].all()


def test_memory_is_used_again() -> None:
    """A second batch of the same shape lies where the first one did; a larger one is right as well."""
    stage, whole = Stage(CPU), unroll()
    first = stage.load([whole]).obs[0]
    assert stage.load([whole]).obs[0].data_ptr() == first.data_ptr()
    batch = stage.load([whole, whole])
    assert torch.equal(batch.obs[0][:, :6], batch.obs[0][:, 6:])


def test_unrolls_of_several_lengths_are_refused() -> None:
    """Rows of different times cannot lie side by side; nor can none."""
    model = model_for(PPOConfig())
    with pytest.raises(LocalProtocolError, match="lengths"):
        Stage(CPU).load([acted(model, 8), acted(model, 9)])
    with pytest.raises(LocalProtocolError, match="lengths"):
        Stage(CPU).load([])
