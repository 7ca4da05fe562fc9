"""Parts of an epoch: every row or slot once, and what the model says about them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asyncrl.config import PPOConfig
from asyncrl.learner.batches import Batch, Stage
from asyncrl.learner.encoders import lies_side_by_side
from asyncrl.learner.minibatches import RowSplit, SlotSplit, rows_of_leaf, split_of
from asyncrl.learner.model import ActorCritic
from tests.unit.learner.unrolls import acted, lost_at, model_for

CPU = torch.device("cpu")


def batch_of(model: ActorCritic) -> Batch:
    """Six slots, of which one broke at row 20 and one brought nothing at all."""
    unroll = lost_at(acted(model, 48, 6), 20, [1])
    unroll.valid[:, 4] = False
    unroll.end_obs = [unroll.end_obs[0][unroll.end_rows[:, 1] != 4]]
    unroll.end_rows = unroll.end_rows[unroll.end_rows[:, 1] != 4]
    return Stage(CPU).load([unroll])


@pytest.mark.parametrize("num_parts", [1, 4, 7, 10_000])
def test_an_epoch_shows_every_valid_row_once(num_parts: int) -> None:
    """No void row, no row twice, parts that differ by one at most, none empty, whatever their number."""
    batch = batch_of(model_for(PPOConfig()))
    parts = [part.rows.numpy() for part in RowSplit(batch, num_parts).parts(np.random.default_rng(0))]
    assert len(parts) == min(num_parts, int(batch.valid.sum()))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.flatnonzero(batch.valid))
    sizes = [len(part) for part in parts]
    assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("num_parts", [1, 2, 5, 9])
def test_an_epoch_shows_every_slot_once(num_parts: int) -> None:
    """Slots come whole, in one part each; those without a valid row come in none."""
    batch = batch_of(model_for(PPOConfig(gru_size=8)))
    split = split_of(batch, num_parts)
    assert isinstance(split, SlotSplit)
    parts = list(split.parts(np.random.default_rng(0)))
    assert len(parts) == min(num_parts, 5)
    slots = [part.slots.tolist() for part in parts if part.slots is not None]
    assert sorted(slot for chosen in slots for slot in chosen) == [0, 1, 2, 3, 5]
    rows = np.concatenate([part.rows.numpy() for part in parts])
    np.testing.assert_array_equal(np.sort(rows), np.flatnonzero(batch.valid))
    for part, here in zip(parts, slots, strict=True):
        assert set((part.rows % 6).tolist()) == set(here)


@pytest.mark.parametrize("gru_size", [0, 8])
def test_the_model_says_of_a_part_what_it_says_of_the_rows(gru_size: int) -> None:
    """Row by row a shuffled part has the values of acting, and the parameters of one forward over everything."""
    model = model_for(PPOConfig(gru_size=gru_size))
    batch = batch_of(model)
    whole = model.sequence(batch.obs, batch.first, batch.carry)
    split = split_of(batch, 3)
    for part in split.parts(np.random.default_rng(3)):
        params, value = split.forward(model, part)
        torch.testing.assert_close(params, whole.params.flatten(0, 1)[part.rows], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(value, torch.from_numpy(batch.value).flatten()[part.rows], atol=1e-5, rtol=1e-5)


def test_rows_of_frames_keep_their_order_in_memory() -> None:
    """Drawn frames are those of the batch, and lie as it has them."""
    frames = torch.randint(0, 256, (10, 36, 36, 4), dtype=torch.uint8).movedim(3, 1)
    rows = torch.tensor([7, 0, 7])
    for leaf in (frames, frames.contiguous()):
        drawn = rows_of_leaf(leaf, rows)
        assert torch.equal(drawn, leaf[rows])
        assert lies_side_by_side(drawn) is lies_side_by_side(leaf)


def test_shuffles_follow_from_the_seed() -> None:
    """The same generator gives the same parts, another one others; without one they are in order."""
    split = RowSplit(batch_of(model_for(PPOConfig())), 4)
    first = [[part.rows.tolist() for part in split.parts(np.random.default_rng(seed))] for seed in (0, 0, 1)]
    assert first[0] == first[1] != first[2]
    in_order = [row for part in split.parts(None) for row in part.rows.tolist()]
    assert in_order == sorted(in_order)


def test_no_gradient_is_nan_beside_void_rows() -> None:
    """A lane that broke leaves NaN in its void rows; the gradient of the rest is finite."""
    model = model_for(PPOConfig(gru_size=8))
    batch = batch_of(model)
    split = split_of(batch, 1)
    (part,) = split.parts(None)
    params, value = split.forward(model, part)
    (params.square().mean() + value.square().mean()).backward()  # type: ignore[no-untyped-call]
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
